"""Reading what torch.load(weights_only=True) reads gives the same. Others: test_old_checkpoints.py, test_hostile.py."""

import collections
import hashlib
import io
import zipfile
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from documents import LAYOUTS, assert_same, read
from hostile import WEIGHTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from backbones import reading
from ringbench import places


def trusted(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


NUMBERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.uint8]
OTHERS = [torch.bool, torch.int8, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]
OTHERS += [torch.float8_e4m3fn, torch.float8_e5m2]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, any bits, any layout: contiguous, transposed, sliced with steps, expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    numel = int(np.prod(shape))
    bits = torch.frombuffer(bytearray(draw(st.binary(min_size=8, max_size=8))), dtype=draw(st.sampled_from(NUMBERS)))
    tensor = bits.repeat(numel)[:numel].reshape(shape)
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
@pytest.mark.parametrize("dtype", NUMBERS + OTHERS, ids=str)
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


def test_a_safetensors_file_is_mapped_whatever_its_name(tmp_path):
    save_file(WEIGHTS, tmp_path / "model.pth")
    document = reading.read(tmp_path / "model.pth")
    assert document.container == "safetensors"
    assert_same({name: document.tree[name] for name in WEIGHTS}, WEIGHTS)


def test_a_document_carries_the_hash_of_its_file_and_leaves_nothing_behind(tmp_path):
    document = read(hostile.saved(WEIGHTS))
    assert document.file_sha256 == hashlib.sha256((tmp_path / "model.pth").read_bytes()).hexdigest()
    assert [*places.cache().iterdir()] == []
    assert document.tree["bn1.bias"].sum() == 2  # the tensors outlive the sandbox's answer


def test_many_plain_values_are_no_bomb():
    labels = [f"n{i:08d}" for i in range(100_000)]
    found = read(hostile.saved({"labels": labels, "twice": [labels, labels], "w": torch.ones(1)})).tree
    assert found["twice"][1] == labels == found["labels"]
