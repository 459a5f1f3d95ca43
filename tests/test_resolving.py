import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, head, moco_like, numbered, trunk_state, under

from backbones import formats, loading, reading, resolving
from backbones.spec import BackboneSpec
from backbones.trunk import ARCHS, build
from ringbench.errors import RingbenchError, UsageError

STATE, OTHER = trunk_state(seed=0), trunk_state(seed=1)


def same(found: dict, state: dict) -> bool:
    names = [name for name in state if not name.endswith("num_batches_tracked")]
    return set(names) <= set(found) and all(torch.equal(found[name], state[name]) for name in names)


def resolve(tree, **options):
    return resolving.resolve(tree, "enc.pth", **options)


def save(tree, path):
    """Write a file of the project's own kind: an .npz of arrays, a plain pickle of nested arrays, or torch's."""
    if all(isinstance(value, np.ndarray) for value in tree.values()):
        path = path.with_suffix(".npz")
        np.savez(path, **tree)
    elif path.stem.startswith(("detectron2", "caffe2", "byol_haiku")):
        path.write_bytes(pickle.dumps(tree))
    else:
        torch.save(tree, path)
    return path


def as_read(node):
    """What reading gives back, without the way over a file."""
    match node:
        case np.ndarray():
            return torch.as_tensor(np.ascontiguousarray(node))
        case torch.nn.Module():
            return dict(node.state_dict())
        case dict():
            return {key: as_read(value) for key, value in node.items()}
    return node


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_trunk_is_found_in_a_file_of_every_family(name, tmp_path):
    layout = LAYOUTS[name]
    state, other = (trunk_state(layout.arch, layout.stem, seed) for seed in (0, 1))
    saved = layout.save(state, other)
    small = layout.arch.startswith("resnet18")  # the large ones would only take longer
    tree = reading.read(save(saved, tmp_path / f"{name}.pth")).tree if small else as_read(saved)
    found = resolve(tree, format="auto" if layout.detected else layout.format)
    assert (found.format, found.arch, found.stem) == (layout.format, layout.arch, layout.stem)
    assert same(found.tensors, state)
    assert all(not name.startswith("conv1") for name in found.dropped)


@pytest.mark.parametrize("name", ["simclr-tensorflow", "byol_haiku", "caffe2"])
def test_arrays_of_other_frameworks_survive_their_files(name, tmp_path):
    layout = LAYOUTS[name]
    state = trunk_state(layout.arch, layout.stem, 0)
    saved = layout.save(state, state)
    found = resolve(reading.read(save(saved, tmp_path / f"{name}.pkl")).tree, format=layout.format)
    assert same(found.tensors, state)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("stem", ["imagenet", "cifar", "lab"])
def test_every_architecture_and_stem_is_told_from_names_and_shapes(arch, stem):
    with torch.device("meta"):
        state = {name: torch.zeros((), device="cpu").expand(t.shape) for name, t in build(arch, stem).state_dict().items()}
    found = resolve({"model": under("module.", state)})
    assert (found.arch, found.stem) == (arch, stem)


def test_every_format_has_a_fixture_and_a_pipeline_that_parses():
    from imagesets.pipeline import parse

    assert {layout.format for layout in LAYOUTS.values()} == set(formats.FORMATS)
    for name in formats.FORMATS:
        assert parse(formats.default_pipeline(name)).size == (224, 224)


# C1, C2, C6, C7: whatever stands around a trunk, it is the one that is found, or the file is refused in one sentence.

words = st.sampled_from(["module", "_orig_mod", "model", "net", "encoder", "0", "backbone", "x.y", "_feature_blocks", "trunk"])


@settings(max_examples=60, deadline=None)
@given(
    prefix=st.lists(words, max_size=4),
    containers=st.lists(st.one_of(words, st.just(3), st.just("list"), st.just("tuple")), max_size=4),
    spelling=st.sampled_from([lambda s: s, numbered]),
    beside=st.lists(st.sampled_from(["fc.weight", "head.0.weight", "queue", "projector.2.bias", "bn.weight"]), unique=True),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
)
def test_a_trunk_is_found_in_any_container_under_any_prefix(prefix, containers, spelling, beside, dtype):
    state = {n: t.to(dtype) if t.is_floating_point() else t for n, t in STATE.items()}
    tree = under("".join(f"{part}." for part in prefix), spelling(state) | head(*beside))
    for key in containers:
        tree = {"list": [1, tree], "tuple": (tree, None)}.get(key) or {"epoch": 3, key: tree, "optimizer": {"state": head("buf")}}
    found = resolve(tree)
    assert (found.arch, found.stem) == ("resnet18", "imagenet")
    assert same(found.tensors, state)
    assert sum(found.dropped.values()) == len(beside) + sum(key not in ("list", "tuple") for key in containers)


@settings(max_examples=30, deadline=None)
@given(
    wrappers=st.lists(st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=3).map("".join), min_size=2, max_size=5),
    data=st.data(),
)
def test_wrappers_in_any_order_and_mixture_come_off(wrappers, data):
    chosen = {name: data.draw(st.sampled_from(wrappers), label=name) for name in list(STATE)[:30]}
    found = resolve({f"{chosen.get(name, wrappers[0])}backbone.{name}": tensor for name, tensor in STATE.items()})
    assert same(found.tensors, STATE)


def test_two_tensors_that_differ_by_wrappers_only_are_an_error():
    tree = under("module.", STATE) | {"_orig_mod.module.conv1.weight": OTHER["conv1.weight"]}
    with pytest.raises(RingbenchError, match=r"two tensors for one place, module\.conv1\.weight and _orig_mod\.module\.conv1"):
        resolve(tree)


def test_two_different_trunks_need_a_choice_and_the_error_lists_them():
    tree = {"a": STATE, "b": {"net": OTHER}}
    with pytest.raises(RingbenchError, match=r"2 different trunks .* --checkpoint-key: a, b\.net"):
        resolve(tree)
    for key, state in {"a": STATE, "b": OTHER, "net": OTHER, "b.net": OTHER}.items():
        assert same(resolve(tree, checkpoint_key=key).tensors, state)
    many = {f"model{number}": STATE for number in range(9)}
    with pytest.raises(RingbenchError, match=r"key 'model_7'; found: model7, (model\d, ){4}model\d and 3 more$"):
        resolve(many, checkpoint_key="model_7")
    with pytest.raises(RingbenchError, match=r"no trunk under the checkpoint key 'c'; found: a, b\.net"):
        resolve(tree, checkpoint_key="c")


def test_two_equal_trunks_are_one():
    assert same(resolve({"a": STATE, "b": STATE}).tensors, STATE)


def test_a_format_chooses_its_own_and_a_checkpoint_key_overrules_it():
    tree = {"student": under("module.backbone.", STATE), "teacher": under("backbone.", OTHER)}
    assert same(resolve(tree).tensors, OTHER)
    assert same(resolve(tree, checkpoint_key="student").tensors, STATE)
    assert same(resolve(moco_like("encoder_q", "encoder_k", STATE, OTHER), checkpoint_key="encoder_k").tensors, OTHER)


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (
            lambda s: {"model": s | {"layer1.0.shortcut.0.weight": s["conv1.weight"], "bn.running_mean": s["bn1.weight"]}},
            "pre-act",
        ),
        (
            lambda s: {n: t for n, t in s.items() if not n.startswith("conv1")} | {"conv1.3.weight": s["conv1.weight"]},
            "deep stem",
        ),
        (lambda s: head("patch_embed.proj.weight", "cls_token"), "vision transformer"),
        (lambda s: head("text.embed.weight"), "no ResNet trunk; its 1 tensors are called text.embed.weight"),
        (lambda s: {n: t for n, t in s.items() if "running" not in n}, r"fills 60 of 100 .* missing bn1\.running_mean"),
        (lambda s: s | {"layer4.2.conv1.weight": s["layer4.1.conv1.weight"]}, "no known architecture"),
        (lambda s: s | {"layer1.0.conv1.bias": s["bn1.bias"]}, r"has 1 trunk tensors .* first layer1\.0\.conv1\.bias"),
        (
            lambda s: s | {"layer2.0.conv1.weight": s["layer1.0.conv1.weight"]},
            r"layer2\.0\.conv1\.weight of shape \(64, 64, 3, 3\)",
        ),
        (lambda s: LAYOUTS["caffe2"].save(trunk_state("resnet50"), {})["blobs"], "Caffe2's names"),
    ],
)
def test_what_is_not_a_whole_torchvision_trunk_is_refused_with_its_reason(tree, sentence):
    tensors = {n: torch.as_tensor(t) for n, t in tree(STATE).items()} if "model" not in tree(STATE) else tree(STATE)
    with pytest.raises(RingbenchError, match=sentence) as caught:
        resolve(tensors)
    assert str(caught.value).startswith("enc.pth ")
    assert "\n" not in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(lost=st.sets(st.sampled_from([n for n in STATE if "tracked" not in n]), min_size=1, max_size=20))
def test_no_trunk_with_a_tensor_less_is_ever_accepted(lost):
    with pytest.raises(RingbenchError):
        resolve({"state_dict": under("module.", {n: t for n, t in STATE.items() if n not in lost})})


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(UsageError, match="expected auto, torchvision, timm"):
        resolve(STATE, format="caffe")


def test_the_certificate_tells_the_way_to_the_trunk_and_what_was_left(tmp_path):
    torch.save(moco_like("encoder_q", "encoder_k", STATE, OTHER, "module.queue"), tmp_path / "moco.pth")
    found = loading.inspect(tmp_path / "moco.pth")
    spec = BackboneSpec(name="e", title="e", source=str(tmp_path / "moco.pth"), **found)
    certificate = loading.load(spec).certificate
    expected = {"path": "state_dict", "prefix": "module.encoder_q", "matched": 120, "missing": 0, "format": "moco"}
    assert {key: certificate[key] for key in expected} == expected
    assert certificate["dropped"] == {
        "optimizer": 1,
        "state_dict.encoder_k": 120,
        "state_dict.encoder_q.fc": 1,
        "state_dict.queue": 1,
    }
    assert certificate["dtypes"] == {"float32": 100, "int64": 20}


def test_resolving_takes_a_small_part_of_the_time_of_reading(tmp_path):
    import time

    state = trunk_state("resnet50")
    torch.save(moco_like("encoder_q", "encoder_k", state, {n: t + 1 for n, t in state.items()}), tmp_path / "moco.pth")
    started = time.perf_counter()
    tree = reading.read(tmp_path / "moco.pth").tree
    read = time.perf_counter() - started
    resolve(tree)
    started = time.perf_counter()
    resolve(tree)
    assert time.perf_counter() - started < 0.3 * read
