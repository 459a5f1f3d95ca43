"""The preprocessing string: its grammar, its one spelling, and pixels equal to torchvision's."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from imagesets.pipeline import FILTERS, Pipeline, parse
from ringbench.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent

sizes = st.integers(1, 9999)
resizes = st.builds(lambda size, filter: f"resize({size}{filter})", sizes.map(str) | st.builds("{}x{}".format, sizes, sizes),
                    st.sampled_from(["", *(f",{name}" for name in FILTERS)]))  # fmt: skip
crops = st.builds("center_crop({})".format, sizes)
means = st.floats(0, 1).map(lambda x: f"{x:.7f}") | st.sampled_from(["0", "1", "1e-3", ".5", "-0"])
deviations = st.floats(0.001, 1).map(lambda x: f"{x:.7f}")
numbers = st.builds(lambda m, s: f"{','.join(m)};{','.join(s)}", st.tuples(*[means] * 3), st.tuples(*[deviations] * 3))
named = st.sampled_from(["dataset", "imagenet", "half"])
tensor_steps = st.builds("|scale01|normalize({})".format, named | numbers) | st.sampled_from(["", "|scale01"])
texts = st.builds(
    lambda colour, geometry, tensor: "|".join([colour, *geometry]) + tensor,
    st.sampled_from(["rgb", "bgr", "rgb(pil)"]), st.lists(resizes | crops, max_size=3), tensor_steps,
)  # fmt: skip


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(texts)
def test_the_canonical_string_reads_back_as_the_same_pipeline_and_prints_the_same(text):
    pipeline = parse(text)
    assert parse(str(pipeline)) == pipeline
    assert str(parse(str(pipeline))) == str(pipeline)
    assert hash(parse(str(pipeline))) == hash(pipeline)


@given(texts, st.tuples(*[st.floats(0, 1)] * 3), st.tuples(*[st.floats(0.001, 1)] * 3))
def test_a_resolved_pipeline_needs_no_statistics_and_round_trips_too(text, mean, std):
    resolved = parse(text).resolve(mean, std)
    assert not resolved.needs_statistics
    assert parse(str(resolved)) == resolved
    assert resolved.resolve((0.9, 0.9, 0.9), (0.9, 0.9, 0.9)) == resolved


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("rgb", "rgb(pil)"),
        (" bgr ( pil ) | resize( 64 , box )|scale01 ", "bgr(pil)|resize(64,box)|scale01"),
        ("rgb|resize(256)|center_crop(224)", "rgb(pil)|resize(256,bilinear)|center_crop(224)"),
        ("rgb|resize(32x48)|scale01", "rgb(pil)|resize(32x48,bilinear)|scale01"),
        ("rgb|scale01|normalize(.5,0.50,5e-1;0.5,0.5,0.5)", "rgb(pil)|scale01|normalize(half)"),
        ("rgb|scale01|normalize(0.485,0.456,0.406;0.229,0.224,0.225)", "rgb(pil)|scale01|normalize(imagenet)"),
        ("rgb|scale01|normalize(0,-0,1;1,1,1)", "rgb(pil)|scale01|normalize(0,0,1;1,1,1)"),
        ("bgr|normalize(103.53,116.28,123.675;1,1,1)", "bgr(pil)|normalize(103.53,116.28,123.675;1,1,1)"),
        ("rgb|scale01|normalize(dataset)", "rgb(pil)|scale01|normalize(dataset)"),
    ],
)
def test_one_computation_has_one_spelling(text, canonical):
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["unknown step ''", "rgb, bgr"]),
        ("rgb||scale01", ["unknown step ''"]),
        ("resize(3)", ["starts with 'resize'", "rgb or bgr"]),
        ("rgb|rezise(256)", ["'rezise(256)'", 'did you mean "resize"']),
        ("RGB|scale01", ["unknown step 'RGB'"]),
        ("rgb(cv2)", ["'rgb(cv2)'", "rgb(pil)"]),
        ("rgb()", ["'rgb()'"]),
        ("rgb|bgr", ["'bgr' cannot follow 'rgb'"]),
        ("rgb|scale01|resize(3)", ["'resize' cannot follow 'scale01'", "the order is"]),
        ("rgb|normalize(1,1,1;1,1,1)|scale01", ["'scale01' cannot follow 'normalize'"]),
        ("rgb|scale01|scale01", ["'scale01' cannot follow 'scale01'"]),
        ("rgb|resize", ["'resize' must be", "resize(N)"]),
        ("rgb|resize(0)", ["'resize(0)'", "1..9999"]),
        ("rgb|resize(10000)", ["'resize(10000)'", "1..9999"]),
        ("rgb|resize(-1)", ["'resize(-1)'"]),
        ("rgb|resize(2.5)", ["'resize(2.5)'"]),
        ("rgb|resize(²)", ["'resize(²)'"]),
        ("rgb|resize(1\u0663)", ["'resize(1\u0663)'"]),
        ("rgb|resize(3x4x5)", ["'resize(3x4x5)'"]),
        ("rgb|resize(64,bicubc)", ["'resize(64,bicubc)'", "bilinear, bicubic", 'did you mean "bicubic"']),
        ("rgb|resize(64", ["'resize(64'"]),
        ("rgb|center_crop(3x4)", ["'center_crop(3x4)'", "center_crop(N)"]),
        ("rgb|scale01(255)", ["'scale01(255)'", "scale01 alone"]),
        ("rgb|scale01|normalize(imagnet)", ["'normalize(imagnet)'", 'did you mean "imagenet"']),
        ("rgb|scale01|normalize(1,1;1,1)", ["normalize(m1,m2,m3;s1,s2,s3)"]),
        ("rgb|scale01|normalize(nan,0,0;1,1,1)", ["'normalize(nan,0,0;1,1,1)'"]),
        ("rgb|scale01|normalize(0,0,0;1,1,1e999)", ["standard deviations", "inf"]),
        ("rgb|scale01|normalize(0,0,0;1,0,1)", ["standard deviations", "after scale01"]),
        ("rgb|scale01|normalize(0,0,0;1,1e-8,1)", ["standard deviations"]),
        ("rgb|scale01|normalize(123.675,116.28,103.53;58.395,57.12,57.375)", ["means", "0..1 after scale01"]),
        ("rgb|normalize(0.485,0.456,0.406;0.229,0.224,0.225)", ["standard deviations", "without scale01"]),
        ("rgb|normalize(imagenet)", ["put scale01 before it"]),
        ("rgb|normalize(dataset)", ["put scale01 before it"]),
    ],
)
def test_a_wrong_string_is_refused_with_the_step_and_what_is_allowed(text, parts):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert all(part in str(caught.value) for part in [f"'{text}'", *parts]), caught.value


@given(st.text(max_size=40) | st.text("rgb|resize(),;0123456789xscale_normlicutp. ", max_size=60))
def test_any_text_is_either_a_pipeline_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert isinstance(parse(text), Pipeline)


def test_named_and_dataset_numbers_follow_the_order_of_the_channels():
    assert parse("rgb|scale01|normalize(imagenet)").mean == (0.485, 0.456, 0.406)
    bgr = parse("bgr|scale01|normalize(imagenet)")
    assert (bgr.mean, bgr.std) == ((0.406, 0.456, 0.485), (0.225, 0.224, 0.229))
    assert str(bgr) == "bgr(pil)|scale01|normalize(imagenet)"
    resolved = parse("bgr|scale01|normalize(dataset)").resolve((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (resolved.mean, resolved.std) == ((0.3, 0.2, 0.1), (0.6, 0.5, 0.4))
    assert parse("bgr|scale01|normalize(0.1,0.2,0.3;0.4,0.5,0.6)").mean == (0.1, 0.2, 0.3)


def test_dataset_numbers_are_printed_as_they_are_used():
    resolved = parse("rgb|scale01|normalize(dataset)").resolve((1 / 3, 0.5, 0.25), (0.1234567, 0.2, 0.3))
    assert str(resolved) == "rgb(pil)|scale01|normalize(0.333333,0.5,0.25;0.123457,0.2,0.3)"
    assert resolved.mean == (0.333333, 0.5, 0.25)


def test_a_set_of_one_colour_cannot_be_normalised():
    with pytest.raises(UsageError, match="statistics of this set"):
        parse("rgb|scale01|normalize(dataset)").resolve((0.5, 0.5, 0.5), (0.0, 0.1, 0.1))


def test_with_geometry_replaces_the_geometric_steps_only():
    pipeline = parse("bgr|resize(256)|center_crop(224)|scale01|normalize(imagenet)")
    assert pipeline.with_geometry(None) == pipeline
    assert str(pipeline.with_geometry("resize(64x64,box)")) == "bgr(pil)|resize(64x64,box)|scale01|normalize(imagenet)"
    for wrong in ("scale01", "resize(3)|scale01", "rgb", "", "rezise(3)"):
        with pytest.raises(UsageError):
            pipeline.with_geometry(wrong)


@pytest.mark.parametrize(
    ("geometry", "size"),
    [
        ("", None),
        ("|resize(256)", None),
        ("|resize(256)|center_crop(224)", (224, 224)),
        ("|resize(32x48)", (32, 48)),
        ("|resize(32x48)|resize(16)", (16, 24)),
        ("|resize(50x33)|resize(16)", (24, 16)),
        ("|center_crop(7)|resize(5)", (5, 5)),
    ],
)
def test_size_is_known_exactly_when_it_does_not_depend_on_the_image(geometry, size):
    pipeline = parse(f"rgb{geometry}")
    assert pipeline.size == size
    for shape in ((61, 40), (9, 9), (30, 83)):
        if size:
            assert pipeline.prepare(picture(*shape)).shape == (*size, 3)


SHAPES = [(1, 1), (1, 7), (5, 4), (31, 32), (32, 31), (33, 47), (64, 65), (100, 75), (75, 101), (37, 500), (213, 160)]


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("size", [31, 32, 57, 224])
def test_resizing_the_shorter_side_equals_torchvision(size, filter):
    from torchvision.transforms import v2

    resize = v2.Resize(size, interpolation=v2.InterpolationMode(filter))
    for height, width in SHAPES:
        image = picture(height, width)
        expected = np.asarray(resize(Image.fromarray(image)))
        np.testing.assert_array_equal(parse(f"rgb|resize({size},{filter})").prepare(image), expected)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 40), (100, 3)])
def test_resizing_to_an_exact_size_equals_torchvision(height, width):
    from torchvision.transforms import v2

    resize = v2.Resize((height, width), interpolation=v2.InterpolationMode.BICUBIC)
    for shape in SHAPES:
        image = picture(*shape)
        expected = np.asarray(resize(Image.fromarray(image)))
        np.testing.assert_array_equal(parse(f"rgb|resize({height}x{width},bicubic)").prepare(image), expected)


@pytest.mark.parametrize("size", [1, 2, 7, 31, 32, 33, 64, 80])
def test_center_crop_equals_torchvision_also_where_the_image_is_smaller(size):
    from torchvision.transforms import v2

    for height, width in [*SHAPES, *((h, w) for h in range(28, 36) for w in range(29, 37))]:
        image = picture(height, width)
        expected = np.asarray(v2.CenterCrop(size)(Image.fromarray(image)))
        np.testing.assert_array_equal(parse(f"rgb|center_crop({size})").prepare(image), expected)


def test_the_standard_preparation_equals_torchvision():
    from torchvision.transforms import v2

    steps = v2.Compose([v2.Resize(256, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(224)])
    for height, width in [(375, 500), (500, 333), (255, 257), (40, 30)]:
        image = picture(height, width)
        prepared = parse("rgb|resize(256,bicubic)|center_crop(224)|scale01").prepare(image)
        np.testing.assert_array_equal(prepared, np.asarray(steps(Image.fromarray(image))))


@pytest.mark.parametrize("text", ["rgb", "bgr", "bgr|resize(9)", "rgb|center_crop(40)"])
def test_prepare_returns_a_new_contiguous_writable_array_in_channel_order(text):
    image = picture(12, 20)
    before = image.copy()
    prepared = parse(text).prepare(image)
    assert prepared.dtype == np.uint8 and prepared.flags.c_contiguous and prepared.flags.writeable
    np.testing.assert_array_equal(parse(text).prepare(np.asfortranarray(image)), prepared)
    if text.startswith("bgr"):
        np.testing.assert_array_equal(prepared[..., ::-1], parse(text.replace("bgr", "rgb")).prepare(image))
    prepared[:] = 0
    np.testing.assert_array_equal(image, before)


def test_reading_pipelines_and_asking_what_is_missing_imports_no_numerical_library():
    code = (
        "import sys; from pathlib import Path; from imagesets import pipeline, providers;"
        "from imagesets.spec import ImagesetSpec;"
        "pipeline.parse('rgb|resize(3)|scale01|normalize(imagenet)').size;"
        "[providers.missing(ImagesetSpec(name='x', title='X', provider=p, dataset=d, manifest='m.csv'), Path('.'))"
        " for p, d in (('embedded', 'digits'), ('folder', None), ('manifest', None), ('torchvision', 'CIFAR10'))];"
        "print([m for m in ('numpy', 'torch', 'PIL', 'torchvision', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
