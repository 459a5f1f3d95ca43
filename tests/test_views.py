"""Views against torchvision: exactly, for given parameters, image by image; in law, for the parameters that are drawn."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, ks_2samp
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from backbones.stems import LAB_MEAN, LAB_STD
from backbones.stems import lab as rgb_to_lab
from pretrain.views.ablations import Cutout, Noise, Rotation
from pretrain.views.blur import Blur
from pretrain.views.colour import Grayscale, Jitter, Normalise
from pretrain.views.crop import CropAndFlip
from pretrain.views.families import FAMILIES, family
from pretrain.views.lab import Lab
from pretrain.views.step import Sometimes, Step, select
from ringbench.errors import UsageError

MEANS, STDS = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
VARIANTS = [*FAMILIES, "simclr-blur", "simclr-colour", "simclr+cutout", "simclr+rotation", "simclr+noise", "cmc+noise"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """uint8 images in which every kind of pixel occurs: smooth shades, noise, grays, pure and saturated colours."""
    generator = seeded(seed)
    coarse = torch.rand(n, 3, 4, 4, generator=generator)
    x = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    x[:, :, ::3] += 0.3 * torch.randn(x[:, :, ::3].shape, generator=generator)
    x[:, :, :, ::5] = torch.randint(2, x[:, :, :, ::5].shape, generator=generator).float()
    x[:, :, 1::7] = x[:, :1, 1::7]
    return (255 * x.clamp(0, 1)).round().to(torch.uint8)


def by_torchvision(step: Step, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """One step of one image (3, H, W), by torchvision in float64, since its float32 boxes are less exact than ours."""
    if isinstance(step, Sometimes):
        return by_torchvision(step.step, x, p) if p["applied"] else x
    if isinstance(step, CropAndFlip):
        box = [int(p[name]) for name in ("top", "left", "height", "width")]
        x = tv.resized_crop(tv.to_dtype(x, torch.float64, scale=True), *box, [step.size, step.size], antialias=True)
        return tv.horizontal_flip(x) if p["flip"] else x
    if isinstance(step, Jitter):
        b, c, s = p["factors"].tolist()
        operations = [
            lambda x: tv.adjust_brightness(x, b),
            lambda x: tv.adjust_contrast(x, c),
            lambda x: tv.adjust_saturation(x, s),
        ]
        ordered = [operations[i] for i in p["order"].tolist()]
        ordered.insert(int(p["hue_after"]), lambda x: tv.adjust_hue(x, p["hue"].item()))
        for operation in ordered:
            x = operation(x)
        return x
    if isinstance(step, Grayscale):
        return tv.rgb_to_grayscale(x, num_output_channels=3)
    if isinstance(step, Blur):
        return tv.gaussian_blur(x, [2 * step.radius + 1] * 2, [p["sigma"].item()] * 2)
    if isinstance(step, Rotation):
        return tv.rotate(x, 90 * int(p["quarters"]))
    if isinstance(step, Noise):
        return (x + p["noise"]).clamp(0, 1)
    if isinstance(step, Cutout):
        side, row, column = x.shape[1], int(p["row"]), int(p["column"])
        top, left = max(row - side // 4, 0), max(column - side // 4, 0)
        bottom, right = min(row + side // 4, side), min(column + side // 4, side)
        return tv.erase(x, top, left, bottom - top, right - left, torch.tensor(step.fill).view(3, 1, 1))
    if isinstance(step, Lab):
        return tv.normalize(rgb_to_lab(x[None])[0], LAB_MEAN, LAB_STD)
    assert isinstance(step, Normalise)
    return tv.normalize(x, step.mean, step.std)


def one_by_one(step: Step, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    x = x if x.dtype == torch.uint8 else x.double()
    return torch.stack([by_torchvision(step, image, select(p, i)) for i, image in enumerate(x)])


def assert_equal_to_torchvision(step: Step, x: Tensor, p: dict[str, Tensor], atol: float = 2e-6) -> None:
    expected = one_by_one(step, x, p).float()
    torch.testing.assert_close(step.apply(x.clone(), p), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("shape, size", [((32, 32), 32), ((50, 40), 24), ((20, 28), 64), ((256, 256), 224), ((300, 9), 8)])
def test_crops_and_flips_are_torchvisions_antialiased_ones(shape, size):
    n = 24
    height = torch.randint(1, shape[0] + 1, (n,), generator=seeded(1))
    width = torch.randint(1, shape[1] + 1, (n,), generator=seeded(2))
    height[0], width[0], height[1], width[1] = *shape, 1, 1  # the whole image, one pixel
    height[2], width[2] = min(size, shape[0]), min(size, shape[1])
    u, v = torch.rand(2, n, generator=seeded(3))
    top, left = (u * (shape[0] - height + 1)).long(), (v * (shape[1] - width + 1)).long()
    p = {"top": top, "left": left, "height": height, "width": width, "flip": torch.arange(n) % 2 == 1}
    assert_equal_to_torchvision(CropAndFlip(size, (0.2, 1)), pictures(n, *shape), p)


def test_jitter_is_torchvisions_in_each_of_the_24_orders():
    orders = torch.tensor(list(itertools.permutations(range(3)))).repeat(4, 1)
    p = Jitter(0.8, 0.8, 0.8, 0.5).draw((24, 3, 32, 32), seeded()) | {"order": orders, "hue_after": torch.arange(24) // 6}
    step, x = Jitter(0.8, 0.8, 0.8, 0.5), pictures(24) / 255
    assert_equal_to_torchvision(step, x, p, atol=1e-5)
    other = step.apply(x, p | {"order": orders.flip(1)})
    assert ((other - step.apply(x, p)).abs().amax((1, 2, 3)) > 0.01).float().mean() > 0.9  # the order matters


@pytest.mark.parametrize("hue", [-0.5, -1 / 3, -0.1, 0.0, 1 / 6, 0.25, 0.5])
def test_a_hue_shift_is_torchvisions_for_grays_ties_and_pure_colours(hue):
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    p = {"factors": torch.ones(1, 3), "hue": torch.tensor([hue]), "order": torch.arange(3)[None], "hue_after": torch.tensor([1])}
    assert_equal_to_torchvision(Jitter(0, 0, 0, 0.5), cube, p)


def test_factors_of_one_without_a_hue_shift_change_nothing():
    x = pictures(4) / 255
    step = Jitter(0, 0, 0, 0)
    torch.testing.assert_close(step.apply(x, step.draw(x.shape, seeded())), x, atol=1e-6, rtol=0)


@pytest.mark.parametrize("radius", [1, 6, 11, 31])
def test_blur_is_torchvisions_with_its_reflecting_border(radius):
    p = {"sigma": torch.tensor([0.1, 0.3, 1.0, 2.0, 30.0])}
    assert_equal_to_torchvision(Blur(radius), pictures(5) / 255, p)


@pytest.mark.parametrize(
    "step", [Grayscale(), Normalise(MEANS, STDS), Cutout(MEANS), Rotation(), Noise(0.3), Sometimes(0.4, Blur(2))], ids=repr
)
def test_the_other_steps_are_torchvisions(step):
    x = pictures(40) / 255
    assert_equal_to_torchvision(step, x, step.draw(x.shape, seeded(4)))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_whole_family_is_torchvisions_image_by_image(name):
    views, images = family(name, 24, MEANS, STDS), pictures(30, 40, 36)
    parameters = views.draw(images.shape, seeded(5))
    expected = images
    for step, p in zip(views.steps, parameters, strict=True):
        expected = one_by_one(step, expected, p)
    found = views.apply(images, parameters)
    assert found.shape == (30, 3, 24, 24) and found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float(), atol=1e-4 if "cmc" in name else 2e-5, rtol=0)


def test_the_families_hold_what_their_papers_say():
    jitter, blur = Jitter(0.4, 0.4, 0.4, 0.1), Sometimes(0.5, Blur(11))
    gray, last = Sometimes(0.2, Grayscale()), Normalise(MEANS, STDS)
    strong = Sometimes(0.8, Jitter(0.8, 0.8, 0.8, 0.2))
    expected = {
        "ring": (CropAndFlip(224, (0.2, 1)), gray, Jitter(0.4, 0.4, 0.4, 0.4), last),
        "moco_v2": (CropAndFlip(224, (0.2, 1)), Sometimes(0.8, jitter), gray, Sometimes(0.5, Blur(6)), last),
        "simclr": (CropAndFlip(224, (0.08, 1)), strong, gray, blur, last),
        "simclr_cifar": (CropAndFlip(224, (0.08, 1)), Sometimes(0.8, jitter), gray, last),
        "cmc": (CropAndFlip(224, (0.2, 1)), Lab()),
        "supervised": (CropAndFlip(224, (0.08, 1)), last),
        "characters": (CropAndFlip(224, (0.5, 1), flip=0), Jitter(0.4, 0.4, 0, 0), last),
        "simclr-colour": (CropAndFlip(224, (0.08, 1)), blur, last),
        "simclr-blur+cutout": (CropAndFlip(224, (0.08, 1)), strong, gray, Cutout(MEANS), last),
    }
    for name, steps in expected.items():
        assert repr(family(name, 224, MEANS, STDS).steps) == repr(steps), name


def test_rgb_to_lab_is_scikit_images():
    known = {  # printed by skimage.color.rgb2lab of scikit-image 0.26
        (0, 0, 0): (0.0000, 0.0000, 0.0000),
        (255, 255, 255): (100.0000, -0.0025, 0.0047),
        (255, 0, 0): (53.2406, 80.0923, 67.2028),
        (0, 255, 0): (87.7351, -86.1830, 83.1797),
        (0, 0, 255): (32.2957, 79.1856, -107.8573),
        (10, 10, 10): (2.7417, -0.0002, 0.0003),
        (1, 2, 3): (0.5098, -0.1225, -0.4705),
        (200, 30, 90): (44.1609, 65.8066, 10.6150),
        (250, 240, 5): (92.8647, -16.3922, 90.8104),
        (9, 0, 11): (0.7429, 3.8865, -3.3431),
    }
    rgb, lab = (torch.tensor(list(side), dtype=torch.float32).T[None, :, None] for side in (known, known.values()))
    torch.testing.assert_close(rgb_to_lab(rgb / 255), lab, atol=2e-4, rtol=0)


def test_the_lab_views_lie_within_minus_one_and_one():
    levels = torch.linspace(0, 1, 16)
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 64, 64)
    low, high = (t.amax((0, 2, 3)) for t in (-Lab().apply(cube, {}), Lab().apply(cube, {})))
    torch.testing.assert_close(low, torch.ones(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(high, torch.ones(3), atol=1e-3, rtol=0)


def same_law(ours: Tensor, theirs: list[float]) -> bool:
    return ks_2samp(ours.double().numpy(), np.array(theirs, dtype=float)).pvalue > 0.001


N = 2000
BOX = ("top", "left", "height", "width")


def boxes(shape: tuple[int, int], *scale_and_ratio: tuple[float, float]) -> list[dict]:
    torch.manual_seed(6)
    crop, image = v2.RandomResizedCrop(24, *scale_and_ratio), torch.empty(3, *shape)
    return [crop.make_params([image]) for _ in range(N)]


@pytest.mark.parametrize("shape", [(32, 32), (256, 256), (60, 31), (20, 90), (100, 30)])
@pytest.mark.parametrize("scale", [(0.08, 1), (0.2, 1)])
def test_boxes_have_the_law_of_torchvisions(shape, scale):
    """With the narrow images most proposals are refused, and some boxes are the central one."""
    ours, theirs = CropAndFlip(24, scale).draw((N, 3, *shape), seeded(7)), boxes(shape, scale)
    for name in BOX:
        assert same_law(ours[name], [p[name] for p in theirs]), name
    area = [p["height"] * p["width"] for p in theirs]
    assert same_law(ours["height"] * ours["width"], area)
    assert (ours["height"] * ours["width"]).float().mean() == pytest.approx(np.mean(area), rel=0.05)
    fallback = CropAndFlip(24, (2, 2)).draw((1, 3, *shape), seeded())  # a box twice as large as the image never fits
    expected = v2.RandomResizedCrop(24, (2, 2)).make_params([torch.empty(3, *shape)])
    assert {name: int(fallback[name]) for name in BOX} == {name: expected[name] for name in BOX}


def test_ratios_of_boxes_are_log_uniform_as_torchvisions():
    wide = ((0.05, 0.3), (0.1, 10.0))
    ours, theirs = CropAndFlip(24, *wide).draw((N, 3, 64, 64), seeded(7)), boxes((64, 64), *wide)
    assert same_law(ours["width"] / ours["height"], [p["width"] / p["height"] for p in theirs])


def test_the_test_of_boxes_tells_one_familys_scale_from_anothers():
    ours = CropAndFlip(24, (0.2, 1)).draw((N, 3, 32, 32), seeded(7))
    assert not same_law(ours["height"], [p["height"] for p in boxes((32, 32), (0.08, 1))])


def test_jitter_factors_and_orders_have_the_law_of_torchvisions():
    strengths = (0.8, 1.2, 0.4, 0.2)  # contrast from 0, where torchvision cuts its range off
    torch.manual_seed(8)
    jitter, image = v2.ColorJitter(*strengths), torch.empty(3, 8, 8)
    theirs = [jitter.make_params([image]) for _ in range(N)]
    ours = Jitter(*strengths).draw((N, 3, 8, 8), seeded(9))
    names = ("brightness_factor", "contrast_factor", "saturation_factor")
    for values, name in zip(ours["factors"].T, names, strict=True):
        assert same_law(values, [p[name] for p in theirs]), name
    bounds = torch.tensor([[0.2, 0.0, 0.6], [1.8, 2.2, 1.4]])
    extremes = torch.stack([ours["factors"].amin(0), ours["factors"].amax(0)])
    assert (extremes[0] >= bounds[0]).all() and (extremes[1] <= bounds[1]).all()
    torch.testing.assert_close(extremes, bounds, atol=0.02, rtol=0)
    assert same_law(ours["hue"], [p["hue_factor"] for p in theirs])
    orders = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    counts, expected = np.zeros(24), np.zeros(24)
    for order, after, p in zip(ours["order"].tolist(), ours["hue_after"].tolist(), theirs, strict=True):
        order.insert(after, 3)
        counts[orders[tuple(order)]] += 1
        expected[orders[tuple(p["fn_idx"].tolist())]] += 1
    for observed in (counts, expected):
        assert chisquare(observed).pvalue > 0.001  # each of the 24 as often


def test_blur_widths_have_the_law_of_torchvisions():
    torch.manual_seed(10)
    blur = v2.GaussianBlur(23, (0.1, 2.0))
    theirs = [blur.make_params([])["sigma"][0] for _ in range(N)]
    assert same_law(Blur(11).draw((N, 3, 24, 24), seeded(11))["sigma"], theirs)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_a_step_is_applied_and_an_image_flipped_with_its_probability(p):
    margin = 4 * math.sqrt(p * (1 - p) / N)
    applied = Sometimes(p, Grayscale()).draw((N, 3, 8, 8), seeded(12))["applied"]
    flipped = CropAndFlip(8, (0.2, 1), flip=p).draw((N, 3, 8, 8), seeded(13))["flip"]
    for chosen in (applied, flipped):
        assert chosen.float().mean() == pytest.approx(p, abs=margin)


def test_cutouts_and_rotations_are_uniform():
    cutout, rotation = Cutout(MEANS).draw((N, 3, 8, 8), seeded(14)), Rotation().draw((N, 3, 8, 8), seeded(15))
    for values in (cutout["row"], cutout["column"], rotation["quarters"]):
        assert chisquare(values.bincount().numpy()).pvalue > 0.001
    assert (values.max(), cutout["row"].max()) == (3, 7)


def test_views_have_the_moments_of_torchvisions():
    """Mean, spread and smoothness of the views of one image, each within four standard errors of torchvision's."""
    image, n = pictures(1, seed=3)[0], 800
    torch.manual_seed(16)
    theirs = v2.Compose(
        [
            v2.RandomResizedCrop(24, (0.2, 1)),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5),
            v2.RandomHorizontalFlip(),
        ]
    )
    expected = torch.stack([theirs(image / 255) for _ in range(n)])
    found = family("moco_v2", 24, (0, 0, 0), (1, 1, 1))(image.expand(n, -1, -1, -1), seeded(17))

    def moments(x: Tensor) -> Tensor:
        chroma = (x.amax(1) - x.amin(1)).mean((1, 2))
        slope = x.diff(dim=3).abs().mean((1, 2, 3))
        leftness = x[..., :12].mean((1, 2, 3)) - x[..., 12:].mean((1, 2, 3))
        return torch.cat([x.mean((2, 3)), x.std((2, 3)), torch.stack([chroma, slope, leftness], 1)], 1)

    ours, theirs = moments(found), moments(expected)
    for of in (lambda m: m, lambda m: (m - m.mean(0)) ** 2):
        a, b = of(ours), of(theirs)
        error = ((a.var(0) + b.var(0)) / n).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["moco_v2", "simclr+cutout+rotation+noise"])
def test_the_generator_alone_decides(name):
    views, images = family(name, 24, MEANS, STDS), pictures(16)
    before = images.clone()
    torch.manual_seed(0)
    first = views(images, seeded(1))
    torch.manual_seed(1)
    assert torch.equal(views(images, seeded(1)), first)
    assert not torch.equal(views(images, seeded(2)), first)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", ["moco_v2", "simclr+cutout+rotation+noise", "cmc"])
def test_a_part_of_the_batch_gives_that_part_of_the_views(name):
    views, images = family(name, 24, MEANS, STDS), pictures(16)
    parameters = views.draw(images.shape, seeded(1))
    whole = views.apply(images, parameters)
    for rows in (slice(5, 11), slice(3, 4)):
        part = views.apply(images[rows], [select(p, rows) for p in parameters])
        torch.testing.assert_close(part, whole[rows], atol=1e-5, rtol=1e-5)


def test_each_image_has_parameters_of_its_own():
    same = pictures(1).expand(64, -1, -1, -1)
    views = family("moco_v2", 24, MEANS, STDS)(same, seeded())
    assert (torch.cdist(views.flatten(1), views.flatten(1)) + 1e9 * torch.eye(64)).min() > 0.1


@pytest.mark.parametrize("name", ["moco_v2", "simclr"])
def test_views_are_as_fine_under_autocast(name):
    views, images = family(name, 24, MEANS, STDS), pictures(4)
    parameters = views.draw(images.shape, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = views.apply(images, parameters)
    assert torch.equal(under, views.apply(images, parameters))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", VARIANTS)
def test_a_device_makes_the_views_of_the_cpu(name):
    views, images = family(name, 24, MEANS, STDS), pictures(32)
    expected, found = views(images, seeded()), views(images.to("cuda"), seeded())
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "name, message",
    [
        ("moco_v3", 'unknown views .*did you mean "moco_v2"'),
        ("byol", "expected ring, moco_v2, simclr, simclr_cifar, cmc, supervised, characters"),
        ("ring-blur", "leave out what is not there"),
        ("ring+jpeg", "unknown part 'jpeg' after '\\+'; expected cutout, rotation, noise"),
        ("simclr-color", 'did you mean "colour"'),
    ],
)
def test_an_unknown_family_is_refused_with_what_there_is(name, message):
    with pytest.raises(UsageError, match=message):
        family(name, 32, MEANS, STDS)


def test_what_is_not_a_batch_of_uint8_images_is_refused():
    views = family("ring", 24, MEANS, STDS)
    for images in (pictures(2) / 255, pictures(1)[0], pictures(2)[:, :1]):
        with pytest.raises(UsageError, match="views are made of uint8 images"):
            views(images, seeded())
    with pytest.raises(UsageError, match="8 x 8 pixels or more"):
        family("ring", 7, MEANS, STDS)
