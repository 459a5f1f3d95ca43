"""What a checkpoint is made of while nobody trusts it: plain records without behaviour, which a pickle can fill but not change.

Only the standard library, like everything that runs in backbones.untrusted.sandbox.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

ITEMSIZE = dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1)
ITEMSIZE |= {"float8_e8m0fnu": 1} | dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2)
ITEMSIZE |= dict.fromkeys(("uint32", "int32", "float32"), 4)
ITEMSIZE |= dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8) | {"complex128": 16}
ITEMSIZE = {f"torch.{name}": size for name, size in ITEMSIZE.items()}

NUMPY = {"b1": ("bool", "?"), "i1": ("int8", "b"), "i2": ("int16", "h"), "i4": ("int32", "i"), "i8": ("int64", "q")}
NUMPY |= {"u1": ("uint8", "B"), "u2": ("uint16", "H"), "u4": ("uint32", "I"), "u8": ("uint64", "Q")}
NUMPY |= {"f2": ("float16", "e"), "f4": ("float32", "f"), "f8": ("float64", "d")}
NUMPY |= {"c8": ("complex64", "2f"), "c16": ("complex128", "2d")}  # code: (torch's name, struct's format of one element)

# What zipfile and tarfile raise for damaged archives, besides the errors they define.
ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError, NotImplementedError, ValueError)


class Refused(Exception):
    """The file is not read. The message completes a sentence that begins with the file's name."""


class Broken(Refused):
    """What should be a pickle is none, or not all of one."""


class Token(str):
    """The name of a dtype, which stands for itself."""

    __slots__ = ()


class Storage:
    """`nbytes` bytes of `file` from `start` on, in big-endian numbers `swap` bytes wide, or little-endian where it is 0."""

    __slots__ = ("file", "nbytes", "start", "swap")

    def __init__(self, file: BinaryIO, start: int = 0, nbytes: int = 0) -> None:
        self.file, self.start, self.nbytes, self.swap = file, start, nbytes, 0


class View(NamedTuple):
    """`numel` elements of a storage from element `first` on: torch's typed storage."""

    storage: Storage
    dtype: Token
    numel: int
    first: int = 0


class Tensor(NamedTuple):
    """A strided tensor; offset and strides count elements of `dtype`."""

    view: View
    dtype: Token
    offset: int
    shape: tuple
    stride: tuple


class Frozen(type):
    """The class of the classes that a pickle may name: their attributes are as they were written here."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(f"{cls.__name__} is frozen")


class Namespace(dict, metaclass=Frozen):
    """argparse.Namespace, as the dict of its attributes."""

    name = "argparse.Namespace"

    def __setstate__(self, state: dict) -> None:
        self.update(state)


class Stub(metaclass=Frozen):
    """Stands for an unknown class or function, and for whatever calling it would give; `name` is the global's."""

    __slots__ = ("args", "entries", "items", "state")
    name = ""

    def __new__(cls, *args: Any, **options: Any) -> "Stub":
        stub = super().__new__(cls)
        stub.args, stub.items, stub.entries, stub.state = [*args, *options.values()], [], {}, None
        return stub

    def __call__(self, *args: Any) -> "Stub":
        return type(self)(self, *args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        self.items.append(value)

    add = append


def stub_class(name: str) -> type[Stub]:
    return Frozen("Stub", (Stub,), {"__slots__": (), "name": name})


class NumpyDtype:
    """numpy.dtype: a code such as f4, and a byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, order: str = "<") -> None:
        self.code, self.order = code, order

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]


class NumpyArray:
    """numpy.ndarray: its state is (version, shape, dtype, in Fortran order, bytes or a list of objects)."""

    __slots__ = ("state",)

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __setstate__(self, state: tuple) -> None:
        self.state = state


def to_bytes(data: Any) -> bytes:
    if type(data) in (bytes, bytearray):
        return bytes(data)
    if type(data) is not str:
        raise TypeError(f"{type(data).__name__} instead of bytes")
    return data.encode("latin1")


def number_width(dtype: Token) -> int:
    """The bytes of one real number of `dtype`, the unit in which byte order counts."""
    return ITEMSIZE[dtype] // (2 if "complex" in dtype else 1)


def chunks(storage: Storage) -> Iterator[bytes]:
    """The bytes of a storage, a little at a time, in little-endian numbers."""
    file, left = storage.file, storage.nbytes
    try:
        file.seek(storage.start)
        while left:
            chunk = file.read(min(left, 1 << 18))
            if not chunk:
                raise Refused("ends too early: download it again")
            left -= len(chunk)
            yield _swapped(chunk, storage.swap) if storage.swap > 1 else chunk
    except ARCHIVE_ERRORS as error:
        raise Refused(f"is a damaged zip archive ({error}): download it again") from None


def _swapped(chunk: bytes, width: int) -> bytes:
    swapped = bytearray(len(chunk))
    for i in range(width):
        swapped[i::width] = chunk[width - 1 - i :: width]
    return bytes(swapped)
