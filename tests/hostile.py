"""Hostile pickles, made in code. `attacks(canary)` try to create the file `canary`; the rest fill the memory, never end, or name
numbers that are not theirs. `Case.says` is a pattern for the refusal; None means that the file is read and holds tensors.
"""

import collections
import io
import os
import pickle
import struct
import subprocess
import timeit
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

WEIGHTS = {"conv1.weight": torch.arange(24.0).reshape(2, 3, 2, 2), "bn1.bias": torch.ones(2)}


@dataclass(frozen=True)
class Case:
    name: str
    content: bytes
    says: str | None
    filename: str = "model.pth"
    attack: bytes | None = None


class Call:
    """Pickles as a call of `function` with `args`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple:
        return self.call


# Building blocks -----------------------------------------------------------------------------------------------------------


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def legacy(value: Any) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False)


def rezipped(data: bytes, replace: dict[str, bytes | None] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A torch file with some records replaced (by suffix; None removes), written by another zip program."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", method) as new:
        for info in old.infolist():
            wanted = [each for suffix, each in (replace or {}).items() if info.filename.endswith(suffix)]
            content = wanted[0] if wanted else old.read(info)
            if content is not None:
                new.writestr(info.filename, content)
    return file.getvalue()


def in_zip(pickled: bytes) -> bytes:
    """A torch zip file whose data.pkl is `pickled`, with one storage of 24 floats."""
    return rezipped(saved({"w": torch.arange(24.0)}), {"/data.pkl": pickled})


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value: int) -> bytes:
    return b"\x8a" + bytes([16]) + value.to_bytes(16, "little", signed=True)


def tensor(shape: tuple = (24,), stride: tuple = (1,), offset: int = 0, numel: int = 24, key: str = "0") -> bytes:
    """The instructions of one float32 tensor, as torch.save writes them, over a storage of `numel` elements."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + integer(numel) + b"tQ"
    sizes = b"(" + b"".join(map(integer, shape)) + b"t(" + b"".join(map(integer, stride)) + b"t"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + integer(offset) + sizes + b"\x89ccollections\nOrderedDict\n)RtR"


def program(*instructions: bytes) -> bytes:
    return b"\x80\x02" + b"".join(instructions) + b"."


# Attacks -------------------------------------------------------------------------------------------------------------------


def attacks(canary: Path) -> Iterator[Case]:
    command, code = f"touch {canary}", f"open({str(canary)!r}, 'w')"
    system = pickle.dumps(Call(os.system, command), 2)
    says = "model.*names posix.system, which no checkpoint needs"
    for extension in (".pth", ".pt", ".pth.tar", ".ckpt", ".bin", ".pkl", ".npz", ".safetensors", ""):
        yield Case(f"os.system in a pickle called {extension or 'nothing'}", system, says, f"model{extension}", system)
    yield Case("os.system in a torch file", saved({"state_dict": WEIGHTS, "x": Call(os.system, command)}), says)
    yield Case("os.system in an old torch file", legacy({"state_dict": WEIGHTS, "x": Call(os.system, command)}), says)
    yield Case("os.system as a key", in_zip(program(b"}(", text("w"), tensor(), system[2:-1], b"Nu")), says)

    line = command.encode()
    for name, attack in {
        "the INST instruction": b"(S'" + line + b"'\nios\nsystem\n.",
        "the OBJ instruction": b"(cos\nsystem\nS'" + line + b"'\no.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + text(command) + b"\x85R.",
        "Python 2's eval": b'c__builtin__\neval\n(S"' + code.encode() + b'"\ntR.',
        "subprocess": pickle.dumps(Call(subprocess.check_call, ["touch", str(canary)])),
        "eval": pickle.dumps(Call(eval, code)),
        "exec": pickle.dumps(Call(exec, code)),
        "timeit": pickle.dumps(Call(timeit.timeit, code, "pass", timeit.default_timer, 1)),
        "getattr of an imported module": pickle.dumps(Call(getattr, Call(__import__, "os"), "system"))[:-1]
        + text(command)
        + b"\x85R.",
        "map": pickle.dumps(Call(list, Call(map, os.system, [command]))),
        "functools.partial": pickle.dumps(partial(os.system, command))[:-1] + b")R.",
        "a pickle inside bytes": pickle.dumps(Call(pickle.loads, system)),
        "a file inside bytes": pickle.dumps(Call(torch.storage._load_from_bytes, saved(Call(os.system, command)))),
        "an old torch file inside bytes": pickle.dumps(Call(torch.storage._load_from_bytes, legacy(Call(os.system, command)))),
    }.items():
        yield Case(f"an attack through {name}", attack, "model.pth (names|hides|holds no tensors)", attack=attack)

    # Functions on no list: inert by themselves, so the file is refused only because no weights come with them.
    for name, attack in {
        "a module within a module": b"\x80\x04"
        + text("torch.serialization")
        + text("os.system")
        + b"\x93"
        + text(command)
        + b"\x85R.",
        "numpy's runstring": b"cnumpy.testing._private.utils\nrunstring\n(" + text(code) + b"}tR.",
        "torch's execWrapper": b"ctorch.jit.unsupported_tensor_ops\nexecWrapper\n(" + text(code) + b"}}tR.",
    }.items():
        yield Case(f"an attack through {name}", attack, "holds no tensors, only", attack=attack)
        beside = in_zip(program(b"}(", text("w"), tensor(), text("x"), attack.removeprefix(b"\x80\x04")[:-1], b"u"))
        yield Case(f"an attack through {name} beside weights", beside, None)
    changed = b"cfunctools\npartial\ncfunctools\npartial\n\x85R(cos\nsystem\n(" + text(command) + b"t}Ntb)R."
    yield Case("an attack through partial's state", changed, "names os.system", attack=changed)
    objects = io.BytesIO()
    np.savez(objects, weights=np.array([Call(os.system, command)], object), w=np.ones(3))
    yield Case("an object array beside an array in npz", objects.getvalue(), None, "model.npz")
    for module, name in (
        ("shutil", "rmtree"),
        ("socket", "socket"),
        ("runpy", "run_path"),
        ("torch.hub", "load"),
        ("ctypes", "CDLL"),
    ):
        call = program(f"c{module}\n{name}\n".encode(), b"N\x85R")
        yield Case(f"a call of {module}.{name}", call, f"names {module}.{name}, which no checkpoint needs")
    for name, setting in {
        "a builder": b"ctorch._utils\n_rebuild_tensor_v2\n",
        "a stub": b"cx\ny\n",
        "a type": b"cbuiltins\nlist\n",
    }.items():
        pickled = program(setting, b"N}", text("__call__"), setting, b"s\x86b", b"0", tensor())
        yield Case(f"setting an attribute of {name}", in_zip(pickled), "is a broken pickle")
    yield Case(
        "a codec that would be imported",
        program(b"c_codecs\nencode\n", text("x"), text("antigravity"), b"\x86R"),
        "broken pickle",
    )
    yield Case("an extension code", program(b"\x82\x01"), "broken pickle")


# Pickles that are no checkpoint --------------------------------------------------------------------------------------------


def bad_pickles() -> Iterator[Case]:
    yield Case("a list that holds itself", in_zip(program(b"]q\x00(h\x00", tensor(), b"e")), "a container that holds itself")
    yield Case("a dict that holds itself", in_zip(program(b"}q\x00(", text("w"), tensor(), text("x"), b"h\x00u")), "holds itself")
    yield Case("lists nested 100,000 deep", program(b"]" * 100_000, b"a" * 99_999), "nested over 100 deep")
    yield Case("calls nested 100,000 deep", program(b"cx\ny\n" * 100_000, b"\x85R" * 99_999), "nest")
    laughs = b"".join(b"(" + b"h%c" % i * 10 + b"lq%c" % (i + 1) for i in range(12))
    yield Case("a billion laughs", program(b"]q\x00", laughs), "is a memo bomb")
    long = text("ha" * 50_000) + b"q\x00"
    yield Case("a long string said often", program(long, b"(", b"h\x00" * 10_000, b"l"), "is a memo bomb")
    yield Case(
        "a global with a long name said often",
        program(b"c", b"x" * 50_000, b"\ny\nq\x00(", b"h\x00" * 1000, b"l"),
        "is a memo bomb",
    )
    yield Case("a memo of 34 billion places", program(b"Nr\xff\xff\xff\xff"), "needs over")
    yield Case("a string said to be huge", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x3fabc.", "ends too early|needs over|broken pickle")
    yield Case("bytes said to be huge", b"\x80\x04\x8e" + b"\xff" * 5 + b"\0\0\0abc.", "ends too early|needs over|broken pickle")
    yield Case("a frame said to be huge", b"\x80\x04\x95" + b"\xff" * 5 + b"\0\0\0N.", "ends too early|needs over|broken pickle")
    yield Case("a number of negative length", program(b"\x8b\xff\xff\xff\xff"), "broken pickle")
    yield Case(
        "a number of 50,000 digits",
        in_zip(program(b"(", tensor(), b"\x8b", struct.pack("<i", 20_000), b"\x7f" * 20_000, b"l")),
        "number",
    )
    for name, saved_id in {
        "text": b"Panything\n",
        "a tuple of nothing": b")Q",
        "a storage of no dtype": b"(" + text("storage") + b"NNNNtQ",
        "a path outside": b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("../../data.pkl") + text("cpu") + b"K\x01tQ",
    }.items():
        yield Case(f"a persistent id that is {name}", in_zip(program(saved_id)), "outside|lacks the numbers|broken pickle")
    yield Case("a storage in a plain pickle", program(tensor()), "refers to something outside itself")
    state = {name: collections.OrderedDict() for name in ("_parameters", "_buffers", "_modules")}
    module = program(b"}(cx\ny\n)\x81", pickle.dumps(state, 2)[2:-1], b"b", tensor(), b"cx\ny\n)\x81", tensor(), b"u")
    yield Case("modules as keys", in_zip(module), None)
    yield Case("no weights at all", saved({"epoch": 3, "name": "x"}), "holds no tensors, only plain values")


def bad_tensors() -> Iterator[Case]:
    larger = "larger than its storage"
    for name, says, one in (
        ("beyond its storage", larger, tensor((25,))),
        ("whose offset is beyond its storage", larger, tensor((1,), offset=24)),
        ("whose stride leaves its storage", larger, tensor((2, 2), (24, 1))),
        ("of negative size", "negative", tensor((-1,))),
        ("of negative stride", "negative", tensor((2,), (-1,), 5)),
        ("of negative offset", "negative", tensor((2,), (1,), -2)),
        ("of sizes that overflow", "impossible", tensor((1 << 40, 1 << 40), (0, 0))),
        ("of sizes that overflow but one", "impossible", tensor((0, 1 << 40, 1 << 40), (0, 0, 0))),
        ("of more sizes than strides", "impossible shape", tensor((2, 2), (1,))),
        ("of a thousand axes", "impossible shape", tensor((1,) * 1000, (1,) * 1000)),
        ("expanded to a terabyte", "repeat its numbers", tensor((1 << 38,), (0,))),
        ("with fewer numbers in the file than it says", larger, tensor((1 << 30,), (1,), 0, 1 << 30)),
        ("whose numbers are missing", "lacks the numbers", tensor(key="7")),
    ):
        yield Case(f"a tensor {name}", in_zip(program(b"(", one, b"l")), says)
    grown = program(b"]q\x00(K\x01e", tensor((1,)).replace(b"(" + integer(1) + b"t(", b"h\x00(", 1), b"h\x00K\x7fa\x86")
    yield Case("a tensor that grows after it was made", in_zip(grown), None)
    eye = torch.eye(3)
    yield Case("sparse tensors", saved({"w": eye.to_sparse()}), "holds sparse tensors: save")
    yield Case("compressed sparse tensors", saved({"w": eye.to_sparse_csr()}), "holds sparse tensors: save")
    yield Case("quantised tensors", saved({"w": torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)}), "holds quantised tensors")
    yield Case("meta tensors", saved({"w": torch.empty(3, device="meta")}), "holds meta tensors, which have no values")
    yield Case("conjugated tensors", saved({"w": torch.ones(2, dtype=torch.cfloat).conj()}), "holds lazily conjugated")
