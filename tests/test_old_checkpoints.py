"""Reading what torch refuses or never wrote: old pickles with objects, whole modules, TorchScript, npz, Detectron2's pickles."""

import argparse
import collections
import enum
import functools
import io
import pickle
import struct
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from documents import LAYOUTS, assert_same, read
from hostile import WEIGHTS, saved
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backbones import reading
from backbones.reading import Stub
from ringbench.errors import RingbenchError


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
    assert {
        f"{__name__}.Odd",
        f"{__name__}.Colour",
        f"{type(Path()).__module__}.PosixPath",
        "functools.partial",
        "torch.optim.sgd.SGD",
    } <= set(document.stubs)
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
    document = read(saved(checkpoint), "last.ckpt")
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
        warnings.simplefilter("ignore")  # torch.jit is deprecated, its files are not
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


def test_an_answer_that_cannot_be_written_is_a_named_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(reading.tempfile, "TemporaryDirectory", lambda **_: nullcontext(str(tmp_path / "nowhere")))
    with pytest.raises(RingbenchError, match=r"cannot be unpacked to .*/nowhere/.*BENCH_HOME"):
        read(saved(WEIGHTS))
