"""Inert values → one safetensors file: every storage once, and the tree that hangs between them as JSON.

The JSON is {"container", "stubs", "tree"}. In a tree, null, true, numbers and strings are themselves; all else is a list:
["list" | "tuple" | "set", item…]   ["dict", [key, value]…]   ["bytes", base64]   ["complex", real, imaginary]
["tensor", storage, dtype, offset, shape, stride]   ["stub", name, {"args" | "items" | "entries" | "state": tree}]

Only the standard library, like everything that runs in backbones.untrusted.sandbox.
"""

import base64
import json
from collections import OrderedDict
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

from backbones.untrusted.containers import Contents, unpacked_limit
from backbones.untrusted.inert import (
    ITEMSIZE,
    NUMPY,
    Frozen,
    Namespace,
    NumpyArray,
    NumpyDtype,
    Refused,
    Storage,
    Stub,
    Tensor,
    Token,
    View,
    chunks,
    number_width,
    to_bytes,
)

DEPTH = 100
ALIGNMENT = 64
DICTS, SETS = (dict, OrderedDict, Namespace), (set, frozenset)


class Skeleton:
    """Turns inert values into JSON and collects the storages of their tensors.

    Here everything a hostile file can say about sizes is judged: tensors within their storages, all tensors together within
    what the file may unpack to, and no more values than the file has bytes to spell out (sharing may repeat them, fourfold).
    """

    def __init__(self, contents: Contents, size: int) -> None:
        self.storages: dict[Storage, int] = {}
        self._values = 4 * contents.described + (1 << 18)
        self._nbytes = unpacked_limit(size)
        self._open: set[int] = set()
        self._told: set[int] = set()
        self._keys = 0
        tree = self._encode(contents.tree)
        if not self.storages:
            raise Refused(f"holds no tensors, {_named(contents.stubs)}: give the file with the weights")
        root = {"container": contents.container, "stubs": list(contents.stubs), "tree": tree}
        self.json = json.dumps(root, separators=(",", ":")).encode()

    def _encode(self, value: Any) -> Any:
        kind = type(value)
        self._values -= 1 + (len(value) if kind in (str, bytes, bytearray) else 0)
        if self._values < 0:
            raise Refused("is a memo bomb, which repeats its values until they fill the memory; delete it")
        if kind is int and value.bit_length() > 10_000:
            raise Refused("has a number of over 10,000 bits, as no checkpoint does: save its state_dict alone")
        if value is None or kind in (bool, int, float, str, Token):
            return value
        if kind in (list, tuple, *DICTS, *SETS) or isinstance(value, Stub):
            return self._nested(value, kind)
        if kind in (bytes, bytearray):
            return ["bytes", base64.b64encode(value).decode()]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is View:
            return self._tensor(Tensor(value, value.dtype, 0, (value.numel,), (1,)))
        if kind is Tensor:
            return self._tensor(value)
        if kind is NumpyArray:
            return self._array(value)
        return ["stub", self._encode(value.name if isinstance(value, Frozen) else getattr(value, "__name__", kind.__name__)), {}]

    def _nested(self, value: Any, kind: type) -> list:
        if id(value) in self._told:  # a stub: objects refer to each other in circles, so each tells what it holds only once
            return ["stub", self._encode(value.name), {}]
        if id(value) in self._open or len(self._open) == DEPTH:
            found = "a container that holds itself" if id(value) in self._open else f"containers nested over {DEPTH} deep"
            raise Refused(f"has {found}, as no checkpoint does: save its state_dict alone")
        self._open.add(id(value))
        encoded = self._stub(value) if isinstance(value, Stub) else self._container(value, kind)
        self._open.discard(id(value))
        return encoded

    def _container(self, value: Any, kind: type) -> list:
        if kind in DICTS:
            return ["dict", *([self._key(key), self._encode(each)] for key, each in dict.items(value))]
        if kind in SETS:
            return ["set", *map(self._key, value)]
        return [kind.__name__, *map(self._encode, value)]

    def _key(self, value: Any) -> Any:
        """A value that has to stay hashable: no module becomes a dict inside it."""
        self._keys += 1
        encoded = self._encode(value)
        self._keys -= 1
        return encoded

    def _stub(self, stub: Stub) -> list:
        module = None if self._keys else _module(stub)
        if module is not None:
            return self._encode(module)
        self._told.add(id(stub))
        given = {"args": stub.args, "items": stub.items, "entries": stub.entries, "state": stub.state}
        return ["stub", self._encode(stub.name), {part: self._encode(value) for part, value in given.items() if value}]

    def _array(self, array: NumpyArray) -> list:
        match array.state:
            case (_, tuple(shape), NumpyDtype() as dtype, fortran, bytes() | bytearray() | str() | Storage() as data):
                if dtype.code in NUMPY:
                    return self._numbers(array, shape, dtype, fortran, data)
            case (_, _, NumpyDtype() as dtype, _, list() as data):
                return ["stub", self._encode(f"numpy.ndarray of {dtype.code}"), {"items": self._encode(data)}]
        return ["stub", "numpy.ndarray of no numbers", {}]

    def _numbers(self, array: NumpyArray, shape: tuple, dtype: NumpyDtype, fortran: Any, data: Any) -> list:
        if type(data) is not Storage:
            raw = to_bytes(data)
            data = Storage(BytesIO(raw), 0, len(raw))
            array.state = (*array.state[:4], data)  # an array met twice is one storage
        token = Token(f"torch.{NUMPY[dtype.code][0]}")
        data.swap = number_width(token) if dtype.order == ">" else 0
        _check(shape)
        stride = _contiguous(shape[::-1])[::-1] if fortran else _contiguous(shape)
        return self._tensor(Tensor(View(data, token, prod(shape)), token, 0, shape, stride))

    def _tensor(self, tensor: Tensor) -> list:
        (storage, stored, numel, first), dtype, offset, shape, stride = tensor
        if len(shape) != len(stride) or len(shape) > 64:
            raise Refused("has a tensor of impossible shape: download it again")
        _check((numel, first, offset, *shape, *stride))
        _check((prod(n or 1 for n in shape),))
        itemsize, width = ITEMSIZE[dtype], ITEMSIZE[stored]
        reach = offset + 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if prod(shape) else 0
        if reach * itemsize > numel * width or (first + numel) * width > storage.nbytes:
            raise Refused(f"has a tensor of shape {[*shape]} that is larger than its storage: download it again")
        self._nbytes -= prod(shape) * itemsize
        if self._nbytes < 0:
            raise Refused("has tensors that repeat its numbers until they fill the memory; delete it")
        index = self.storages.setdefault(storage, len(self.storages))
        place = first * width // itemsize + offset if reach else 0
        return ["tensor", index, dtype.removeprefix("torch."), place, shape, stride]


def _module(stub: Stub) -> dict | None:
    """The parameters, buffers and submodules of a pickled module by name; None for any other object."""
    state = stub.state if type(stub.state) is dict else {}
    if stub.name.startswith("__torch__."):  # TorchScript
        return state
    parts = [state.get(part) for part in ("_parameters", "_buffers", "_modules")]
    if not all(type(part) in DICTS for part in parts):
        return None
    return {name: each for part in parts for name, each in dict.items(part) if each is not None}


def write(path: Path, skeleton: Skeleton) -> None:
    """Write a safetensors file with the JSON as the tensor `tree` and the storages as `0`, `1`, …, all of them bytes.

    Each is padded to a multiple of 64 bytes, so that all of them are aligned for any dtype once the file is mapped.
    Format: https://huggingface.co/docs/safetensors (eight bytes of header length, a JSON header, the bytes without gaps).
    """
    entries, end = {}, 0
    for name, nbytes in [("tree", len(skeleton.json)), *((str(i), s.nbytes) for s, i in skeleton.storages.items())]:
        padded = nbytes + -nbytes % ALIGNMENT
        entries[name] = {"dtype": "U8", "shape": [padded], "data_offsets": [end, end + padded]}
        end += padded
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(skeleton.json + b" " * (-len(skeleton.json) % ALIGNMENT))
        for storage in skeleton.storages:
            for chunk in chunks(storage):
                file.write(chunk)
            file.write(bytes(-storage.nbytes % ALIGNMENT))


def _contiguous(shape: tuple) -> tuple:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _check(sizes: tuple) -> None:
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in sizes):
        raise Refused("has a tensor of negative or impossible size: download it again")


def _named(stubs: dict) -> str:
    return f"only {', '.join([*stubs][:4])}" if stubs else "only plain values"
