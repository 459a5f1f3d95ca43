"""The files that hold a checkpoint: torch's zip and its older stream of pickles, TorchScript, npz, a plain pickle.

Content decides, never the name. Only the standard library, like everything that runs in backbones.untrusted.sandbox.
Layouts: torch/serialization.py (`_load`, `_legacy_load`) and numpy/lib/_format_impl.py.
"""

import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from backbones.untrusted.inert import (
    ARCHIVE_ERRORS,
    ITEMSIZE,
    Broken,
    NumpyArray,
    NumpyDtype,
    Refused,
    Storage,
    Stub,
    Token,
    chunks,
    number_width,
)
from backbones.untrusted.unpickling import Reader

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


class Contents(NamedTuple):
    """`tree` holds inert values; `described` is how many bytes of the file describe it, without the numbers of its tensors."""

    container: str
    tree: Any
    stubs: dict[str, type[Stub]]
    described: int


def unpacked_limit(size: int) -> int:
    """The most bytes a file of `size` bytes may unpack to: ample for compressed weights, far from what a bomb reaches."""
    return 20 * size + (64 << 20)


def read(file: BinaryIO, size: int) -> Contents:
    """Read a checkpoint of `size` bytes; its tensors stay in the file, only the places of their storages are noted.

    Raises:
        Refused: not a checkpoint, or one that is damaged, hostile or of an unsupported kind.
    """
    head = file.read(512)
    file.seek(0)
    if head.startswith(b"PK"):
        return _zip(file, size)
    if head[257:262] == b"ustar":
        raise Refused(_tar(file))
    return _pickles(file, size, head)


def _zip(file: BinaryIO, size: int) -> Contents:
    try:
        archive = zipfile.ZipFile(file)
    except ARCHIVE_ERRORS:
        raise Refused("is a zip archive that was cut short or damaged: download it again") from None
    members = {info.filename: info for info in archive.infolist()}
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > unpacked_limit(size):
        raise Refused(f"is a zip bomb: its {size} bytes claim to unpack to {unpacked}; delete it")

    def member(name: str) -> Storage:
        return _member(archive, file, members[name])

    roots = [name.removesuffix("data.pkl") for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(roots) == 1:
        return _torch(roots[0], set(members), member)
    if members and all(name.endswith(".npy") for name in members):
        arrays = {name.removesuffix(".npy"): _npy(member(name)) for name in members}
        return Contents("npz", arrays, {}, 0)
    names = ", ".join(islice(members, 4)) or "nothing"
    raise Refused(f"is a zip archive that is no checkpoint (it holds {names}): unpack it and give the checkpoint inside")


def _member(archive: zipfile.ZipFile, file: BinaryIO, info: zipfile.ZipInfo) -> Storage:
    if info.flag_bits & 1:
        raise Refused("is an encrypted zip archive: decrypt it first")
    try:
        if info.compress_type != zipfile.ZIP_STORED:
            return Storage(archive.open(info), 0, info.file_size)
        file.seek(info.header_offset + 26)  # the end of the local header: how long the name and the extra field after it are
        name, extra = struct.unpack("<HH", file.read(4))
    except ARCHIVE_ERRORS as error:
        raise Refused(f"is a damaged zip archive ({error}): download it again") from None
    return Storage(file, info.header_offset + 30 + name + extra, info.file_size)


def _torch(root: str, names: set[str], member: Callable[[str], Storage]) -> Contents:
    byteorder = b"".join(chunks(member(f"{root}byteorder"))) if f"{root}byteorder" in names else b"little"
    if byteorder not in (b"little", b"big"):
        raise Refused(f"has the unknown byte order {byteorder[:20]!r}: save it again with torch.save")
    storages: dict[str, Storage] = {}

    def storage(key: str, dtype: Token) -> Storage:
        if key not in storages:
            if f"{root}data/{key}" not in names:
                raise Refused(f"lacks the numbers of its storage {key!r}: download it again")
            storages[key] = member(f"{root}data/{key}")
            if byteorder == b"big":
                storages[key].swap = number_width(dtype)
        return storages[key]

    pickled, stubs = member(f"{root}data.pkl"), {}
    tree = Reader(BytesIO(b"".join(chunks(pickled))), stubs, storage).load()
    return Contents("torchscript" if f"{root}constants.pkl" in names else "zip pickle", tree, stubs, pickled.nbytes)


def _pickles(file: BinaryIO, size: int, head: bytes) -> Contents:
    stubs: dict[str, type[Stub]] = {}

    def nested(data: bytes) -> Any:
        inner = read(BytesIO(data), len(data))
        stubs.update(inner.stubs)
        return inner.tree

    try:
        first = Reader(file, stubs, nested=nested).load()
    except Broken:
        if head.startswith(b"\x80"):  # as pickles of protocol 2 and later do
            raise
        raise Refused(f"is no checkpoint of a known kind (it begins with {head[:24]!r}): look at what was downloaded") from None
    if _is_magic(first):
        return Contents("legacy pickle", _legacy(file, stubs), stubs, size)
    return Contents("plain pickle", first, stubs, size)


def _is_magic(value: Any) -> bool:
    return type(value) is int and value == LEGACY_MAGIC


def _legacy(file: BinaryIO, stubs: dict[str, type[Stub]]) -> Any:
    """After the magic number: protocol, system, the object, the keys of its storages, then each one's length and numbers."""
    storages: dict[str, tuple[Storage, Token]] = {}

    def storage(key: str, dtype: Token) -> Storage:
        return storages.setdefault(key, (Storage(file), dtype))[0]

    def load() -> Any:
        return Reader(file, stubs, storage).load()  # each pickle numbers its memo anew

    protocol, system = load(), load()
    if protocol != LEGACY_PROTOCOL or type(system) is not dict or system.get("little_endian") is not True:
        raise Refused("is a torch file of an unknown version or byte order: save it again with a newer torch")
    tree, keys = load(), load()
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        raise Refused("lists storages that no tensor uses: save it again with torch.save")
    place = file.tell()
    end = file.seek(0, 2)
    for key in keys:
        file.seek(place)
        storage_, dtype = storages[key]
        storage_.start = place + 8
        storage_.nbytes = int.from_bytes(file.read(8), "little") * ITEMSIZE[dtype]
        place = storage_.start + storage_.nbytes
        if place > end:
            raise Refused("ends too early: download it again")
    return tree


def _npy(stored: Storage) -> NumpyArray:
    import ast  # here, as the sandbox starts anew for every file and most files do not need it

    file = stored.file
    file.seek(stored.start)
    try:
        magic, major, _ = file.read(6), *file.read(2)
        length = int.from_bytes(file.read(2 if major == 1 else 4), "little")
        if magic != b"\x93NUMPY" or length > 10_000:  # numpy's own limit, as literal_eval is not made for long input
            raise ValueError("no npy header")
        header = ast.literal_eval(file.read(length).decode("latin1"))
        descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
        used = file.tell() - stored.start
    except Exception as error:
        raise Refused(f"holds a broken npy array ({type(error).__name__}: {error}): download it again") from None
    dtype = NumpyDtype(descr[1:], descr[0]) if type(descr) is str and descr else NumpyDtype("record")
    return NumpyArray(1, shape, dtype, fortran is True, Storage(file, stored.start + used, stored.nbytes - used))


def _tar(file: BinaryIO) -> str:
    import tarfile

    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            names = [entry.name for entry in islice(archive, 4)]
    except (tarfile.TarError, *ARCHIVE_ERRORS) as error:
        return f"is a damaged tar archive ({error}): download it again"
    if {"storages", "tensors", "pickle"} <= set(names):
        return "is a checkpoint in the tar format torch used before February 2017: save it again with torch 1.x"
    return f"is a tar archive (it holds {', '.join(names)}): unpack it and give the checkpoint inside"
