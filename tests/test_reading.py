"""Reading a good checkpoint gives what torch.load(weights_only=True) and numpy give, and more where they refuse."""

import argparse
import collections
import enum
import functools
import io
import json
import pickle
import struct
import subprocess
import warnings
import zipfile
from pathlib import Path
from typing import Any

import hostile
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from backbones import reading
from backbones.reading import Document, Stub
from ringbench import places
from ringbench.errors import RingbenchError

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = hostile.WEIGHTS
LAYOUTS = {"zip pickle": hostile.saved, "legacy pickle": hostile.legacy}


def read(data: bytes, name: str = "model.pth") -> Document:
    path = Path.cwd() / name
    path.write_bytes(data)
    return reading.read(path)


def trusted(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def assert_same(found: Any, expected: Any) -> None:
    """Same structure, order, dtypes, shapes, strides and bits; torch's own small types are strings or tuples in a Document."""
    if isinstance(expected, Tensor):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert type(found) is dict
        assert_same([*found.items()], [*expected.items()])
    elif isinstance(expected, list | tuple):
        assert type(found) is (list if isinstance(expected, list) else tuple)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.dtype | torch.device):
        assert found == str(expected)
    else:
        assert found == expected or (found != found and expected != expected)
        assert type(found) is type(expected) or isinstance(expected, set | bytearray)


# Files that both can read --------------------------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]
DTYPES += [
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, any bits, any layout: contiguous, transposed, sliced with steps, expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES[:9]))
    bits = torch.frombuffer(bytearray(draw(st.binary(min_size=8, max_size=8))), dtype=dtype)
    tensor = bits[: 8 // dtype.itemsize].repeat(-(-int(np.prod(shape)) // len(bits)) + 1)[: int(np.prod(shape))].reshape(shape)
    match draw(st.integers(0, 3)) if shape else 0:
        case 1:
            return tensor.transpose(0, -1)
        case 2:
            return tensor[::2]
        case 3:
            return tensor[:1].expand(3, *shape[1:]) if shape[0] else tensor
    return tensor


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(min_size=1) | st.complex_numbers()
keys = st.text(max_size=9) | st.integers() | st.none() | st.tuples(st.text(max_size=3), st.integers())
trees = st.recursive(
    tensors() | scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=30,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tree=trees, tensor=tensors(), layout=st.sampled_from([*LAYOUTS]))
def test_any_tree_of_tensors_and_plain_values_equals_torchs_reading_of_it(tree, tensor, layout, tmp_path):
    data = LAYOUTS[layout]({"tree": tree, "w": tensor})
    document = read(data)
    assert_same(document.tree, trusted(data))
    assert (document.container, document.stubs) == (layout, [])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(layout, dtype):
    tensor = torch.arange(-128, 128, dtype=torch.int8)
    tensor = tensor > 0 if dtype is torch.bool else tensor.view(dtype)
    data = LAYOUTS[layout]({"w": tensor, "dtype": dtype, "scalar": tensor[3], "none": tensor[:0]})
    found = read(data).tree
    assert found["dtype"] == str(dtype) and found["none"].shape == (0,) and found["scalar"].shape == ()
    assert found["w"].dtype is dtype
    assert bytes(found["w"].view(torch.uint8).numpy()) == bytes(tensor.view(torch.uint8).numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_state_dict_with_its_metadata_parameters_and_optimizer_equals_torchs_reading_of_it(layout):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 3, 8, 8)).sum().backward()
    optimizer.step()
    checkpoint = {
        "state_dict": model.state_dict(),
        "parameters": [*model.parameters()],
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
    }
    checkpoint |= {
        "size": torch.Size((2, 3)),
        "device": torch.device("cuda", 1),
        "when": {1, 2},
        "counts": collections.Counter("aab"),
    }
    data = LAYOUTS[layout](checkpoint)
    assert_same(read(data).tree, trusted(data))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_that_share_memory_still_do(layout):
    base = torch.arange(12.0)
    found = read(LAYOUTS[layout]({"a": base, "b": base[4:].view(2, 4).T, "c": torch.arange(12.0)})).tree
    found["a"][5] = -1
    assert found["b"][1, 0] == -1 and found["c"][5] == 5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_torch_writes_is_read(layout, protocol):
    data = hostile.saved(WEIGHTS, pickle_protocol=protocol, _use_new_zipfile_serialization=layout == "zip pickle")
    assert_same(read(data).tree, WEIGHTS)


class Mine(Tensor):
    pass


def test_a_subclass_of_tensor_and_a_tensor_with_attributes_are_tensors():
    marked = torch.ones(2)
    marked.note = "kept by torch"
    found = read(hostile.saved({"a": torch.ones(3).as_subclass(Mine), "b": marked, "c": torch.nn.Parameter(torch.ones(4))})).tree
    assert [type(each) for each in found.values()] == [Tensor] * 3


def test_a_torch_file_packed_again_by_another_zip_program_is_read():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = hostile.rezipped(hostile.saved(WEIGHTS), method=method)
        assert_same(read(data).tree, WEIGHTS)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            with new.open(info.filename, "w", force_zip64=True) as record:
                record.write(old.read(info))
    assert_same(read(file.getvalue()).tree, WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool], ids=str)
def test_a_torch_file_from_a_big_endian_machine_equals_torchs_reading_of_it(dtype):
    data = hostile.saved({"w": torch.arange(8).to(dtype)})
    width = {torch.complex64: 4}.get(dtype, dtype.itemsize)
    stored = torch.arange(8).to(dtype).view(torch.uint8).reshape(-1, width).flip(1).numpy().tobytes()
    swapped = hostile.rezipped(data, {"/byteorder": b"big", "data/0": stored})
    assert_same(read(swapped).tree, {"w": torch.arange(8).to(dtype)})
    if dtype is not torch.complex64:  # torch swaps whole complex numbers, parts included
        assert_same(read(swapped).tree, trusted(swapped))


# Files torch refuses, or that are not torch's ------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Odd:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class OddList(list):
    pass


class OddDict(dict):
    pass


@pytest.mark.parametrize("layout", LAYOUTS)
def test_old_checkpoints_with_numpy_scalars_and_namespaces_are_read_as_plain_values(layout):
    args = argparse.Namespace(arch="resnet50", lr=0.03, schedule=[120, 160], inner=argparse.Namespace(t=0.07))
    mean = np.float32(0.1)
    checkpoint = {
        "args": args,
        "best": np.float64(67.5),
        "mean": mean,
        "n": np.int64(3),
        "ok": np.bool_(True),
        "z": np.complex128(1 + 2j),
    }
    checkpoint |= {
        "seen": collections.defaultdict(list, {"a": [1]}),
        "array": np.arange(6.0).reshape(2, 3),
        "w": WEIGHTS["bn1.bias"],
    }
    document = read(LAYOUTS[layout](checkpoint))
    assert document.stubs == []
    expected = {"args": {**vars(args), "inner": {"t": 0.07}}, "best": 67.5, "mean": float(mean), "n": 3, "ok": True, "z": 1 + 2j}
    assert_same(
        document.tree,
        expected | {"seen": {"a": [1]}, "array": torch.arange(6.0, dtype=torch.float64).reshape(2, 3), "w": torch.ones(2)},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unknown_objects_become_stubs_that_keep_what_they_were_given(layout):
    w = torch.arange(3.0)
    odd = Odd(weights=w, colour=Colour.RED)
    odd.myself = odd
    items, entries = OddList([w]), OddDict(w=w)
    partial = functools.partial(torch.optim.SGD, lr=0.1)
    document = read(
        LAYOUTS[layout]({"odd": odd, "items": items, "entries": entries, "path": Path("a"), "partial": partial, "type": Odd})
    )
    tree = document.tree
    assert all(type(each) is Stub for each in tree.values())
    assert_same(
        [tree["odd"].content["state"]["weights"], *tree["items"].content["items"], tree["entries"].content["entries"]["w"]],
        [w] * 3,
    )
    assert tree["odd"].content["state"]["colour"].content == {"args": [1]}
    assert tree["odd"].content["state"]["myself"].name == tree["odd"].name == tree["type"].name == f"{__name__}.Odd"
    assert {f"{__name__}.Odd", f"{__name__}.Colour", "pathlib.PosixPath", "functools.partial", "torch.optim.sgd.SGD"} <= set(
        document.stubs
    )
    assert repr(tree["odd"]) == f"<{__name__}.Odd>"


def test_a_lightning_checkpoint_with_omegaconf_nodes_is_read_and_its_classes_are_named():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"optim": {"lr": 0.03, "steps": [1, 2]}, "name": "irings"})
    state = {f"model.{name}": value for name, value in WEIGHTS.items()}
    checkpoint = {
        "epoch": 9,
        "state_dict": state,
        "hyper_parameters": config,
        "callbacks": {"ModelCheckpoint": {"best": torch.tensor(0.5)}},
    }
    checkpoint |= {"hparams_name": "config", "lr_schedulers": [], "loops": collections.OrderedDict(fit={"step": 1})}
    document = read(hostile.saved(checkpoint), "last.ckpt")
    node = document.tree.pop("hyper_parameters")
    assert_same(document.tree, {name: value for name, value in checkpoint.items() if name != "hyper_parameters"})
    assert node.name == "omegaconf.dictconfig.DictConfig" and node.name in document.stubs
    name = node.content["state"]["_content"]["name"]
    assert name.content["state"]["_val"] == "irings"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pickled_module_is_the_nested_dict_of_its_parameters_and_buffers(layout):
    model = torch.nn.Sequential(collections.OrderedDict(conv=torch.nn.Conv2d(1, 2, 3, bias=False), bn=torch.nn.BatchNorm2d(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch cannot find the sources of some modules
        document = read(LAYOUTS[layout](model))
    assert_same({f"{a}.{b}": each for a, inner in document.tree.items() for b, each in inner.items()}, dict(model.state_dict()))
    assert "torch.nn.modules.conv.Conv2d" in document.stubs


def test_a_torchscript_archive_is_read_without_running_its_code(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Sequential(torch.nn.BatchNorm2d(2))).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(model).save(str(tmp_path / "model.pt"))
    document = reading.read(tmp_path / "model.pt")
    assert document.container == "torchscript"
    assert_same(document.tree["0"]["weight"], model[0].weight)
    assert_same(document.tree["1"]["0"]["running_var"], model[1][0].running_var)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(
    arrays=st.dictionaries(
        st.from_regex(r"[a-z]{1,3}", fullmatch=True),
        hnp.arrays(
            st.sampled_from(["<f4", ">f8", "<i8", ">i2", "?", "<f2", "<c8", ">c16", "u1"]),
            hnp.array_shapes(min_dims=0, min_side=0),
        ),
    ),
    fortran=st.booleans(),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_npz_arrays_equal_numpys_reading_of_them(save, arrays, fortran, tmp_path):
    arrays = {"w": np.ones(2), **{name: np.asfortranarray(array) if fortran else array for name, array in arrays.items()}}
    file = io.BytesIO()
    save(file, **arrays)
    document = read(file.getvalue())
    assert document.container == "npz" and document.tree.keys() == arrays.keys()
    for name, array in arrays.items():
        expected = torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))).reshape(array.shape)
        torch.testing.assert_close(document.tree[name], expected, rtol=0, atol=0, equal_nan=True)


class Python2(pickle._Pickler):
    """Writes strings and bytes as Python 2 did, as undeclared bytes."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value: bytes | str) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_bytes


@pytest.mark.parametrize("pickler", [pickle._Pickler, Python2])
def test_a_detectron2_pickle_of_numpy_arrays_is_read_also_where_python_2_wrote_it(pickler):
    arrays = {"stem.conv1.weight": np.random.default_rng(0).random((4, 3, 7, 7), np.float32), "n": np.arange(3).T}
    file = io.BytesIO()
    pickler(file, 2).dump({"model": arrays, "__author__": "MOCO", "matching_heuristics": True})
    document = read(file.getvalue(), "model.pkl")
    assert (document.container, document.stubs) == ("plain pickle", [])
    assert_same(
        document.tree,
        {
            "model": {name: torch.from_numpy(each) for name, each in arrays.items()},
            "__author__": "MOCO",
            "matching_heuristics": True,
        },
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_of_arrays_and_tensors_is_read_whatever_its_protocol(protocol):
    value = {
        "t": torch.arange(4.0)[1:],
        "a": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "s": np.array("x"),
        "o": np.array([{}], object),
    }
    document = read(pickle.dumps(value, protocol))
    assert_same([document.tree["t"], document.tree["a"]], [value["t"], torch.from_numpy(value["a"])])
    assert [document.tree[name].name for name in "so"] == ["numpy.ndarray of no numbers", "numpy.ndarray of O8"]


def test_a_safetensors_file_is_mapped_whatever_its_name(tmp_path):
    save_file(WEIGHTS, tmp_path / "model.pth")
    document = reading.read(tmp_path / "model.pth")
    assert document.container == "safetensors"
    assert_same({name: document.tree[name] for name in WEIGHTS}, WEIGHTS)


def test_a_document_carries_the_hash_of_its_file_and_leaves_nothing_behind(tmp_path):
    document = read(hostile.saved(WEIGHTS))
    hashed = subprocess.run(["sha256sum", tmp_path / "model.pth"], capture_output=True, text=True).stdout
    assert document.file_sha256 == hashed.split()[0]
    assert [*places.cache().iterdir()] == []
    assert document.tree["bn1.bias"].sum() == 2  # the tensors outlive the sandbox's answer


def test_the_answer_is_written_into_the_cache_and_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(reading.tempfile, "TemporaryDirectory", lambda **_: Missing())
    with pytest.raises(RingbenchError, match=r"cannot be unpacked to /nowhere/.*BENCH_HOME"):
        read(hostile.saved(WEIGHTS))


class Missing:
    def __enter__(self) -> str:
        return "/nowhere"

    def __exit__(self, *_: Any) -> None:
        pass


def test_many_plain_values_are_no_bomb():
    labels = [f"n{i:08d}" for i in range(100_000)]
    found = read(hostile.saved({"labels": labels, "twice": [labels, labels], "w": torch.ones(1)})).tree
    assert found["twice"][1] == labels == json.loads(json.dumps(found["labels"]))
