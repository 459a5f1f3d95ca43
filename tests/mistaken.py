"""Broken and mistaken files, made in code: what people find on the internet, or in their downloads, in place of a checkpoint."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator

import numpy as np
from hostile import WEIGHTS, Case, legacy, rezipped, saved


def bad_archives() -> Iterator[Case]:
    good, zeros = saved(WEIGHTS), bytes(200 << 20)
    bomb = rezipped(good, {"data/0": zeros}, zipfile.ZIP_DEFLATED)
    yield Case("a zip bomb", bomb, "is a zip bomb")
    yield Case("an npz bomb", zipped({"w.npy": zeros}, zipfile.ZIP_DEFLATED), "is a zip bomb", "model.npz")
    lying = bytearray(rezipped(good, None, zipfile.ZIP_DEFLATED))
    where = lying.rfind(b"PK\x01\x02", 0, lying.rfind(b"archive/data/0"))
    lying[where + 24 : where + 28] = struct.pack("<I", 1 << 25)
    yield Case("a record that unpacks to less than it says", bytes(lying), "zip|ends too early|larger")
    packed = rezipped(good, None, zipfile.ZIP_DEFLATED)
    first = packed.index(b"archive/data/0") + len("archive/data/0")
    yield Case("a record that does not unpack", packed[:first] + b"\xff" * 9 + packed[first + 9 :], "is a damaged zip archive")
    encrypted = bytearray(rezipped(good))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for start in (i for i in range(len(encrypted)) if encrypted[i : i + 4] == mark):
            encrypted[start + place] |= 1
    yield Case("an encrypted archive", bytes(encrypted), "encrypted")
    yield Case("an empty archive", zipped({}), "is a zip archive that is no checkpoint")
    yield Case("a Keras archive", zipped({"config.json": b"{}", "model.weights.h5": b""}), r"holds config.json, model.weights.h5")
    yield Case("an archive of two torch files", zipped({"a/data.pkl": b"N.", "b/data.pkl": b"N."}), "no checkpoint")
    yield Case("a checkpoint zipped once more", zipped({"model.pth": good}), "holds model.pth.*unpack it")
    yield Case("a torch file of unknown byte order", rezipped(good, {"/byteorder": b"middle"}), "byte order")
    yield Case(
        "an npz with a broken header", zipped({"w.npy": b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[[\n"}), "broken npy", "w.npz"
    )
    yield Case("an npz of negative shape", zipped({"w.npy": _npy("(-4,)")}), "negative", "w.npz")
    yield Case("an npz larger than its numbers", zipped({"w.npy": _npy("(400,)")}), "larger than its storage", "w.npz")
    for name, (pack, kind) in {
        "gz": (gzip.compress, "gzip"),
        "bz2": (bz2.compress, "bzip2"),
        "xz": (lzma.compress, "xz"),
    }.items():
        yield Case(f"a checkpoint in {name}", pack(good), f"is packed with {kind}: unpack it", f"model.pth.{name}")
    for magic, kind in ((b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07", "rar"), (b"\x28\xb5\x2f\xfd", "zstd")):
        yield Case(f"a {kind} archive", magic + bytes(100), f"is packed with {kind}")
    yield Case("a checkpoint in a tar", _tar({"model.pth": good}), "is a tar archive .it holds model.pth", "model.pth.tar")
    old = dict.fromkeys(("sys_info", "pickle", "tensors", "storages"), b"")
    yield Case("torch's first format", _tar(old), "the tar format torch used before", "model.pth")


def broken() -> Iterator[Case]:
    good, old, plain = saved(WEIGHTS), legacy(WEIGHTS), pickle.dumps({"w": np.ones(99)})
    for name, data in (("torch file", good), ("old torch file", old), ("plain pickle", plain)):
        for part in (0.3, 0.8, 0.98):
            cut = data[: int(part * len(data))]
            yield Case(f"the first {part:.0%} of a {name}", cut, "cut short or damaged|ends too early|broken pickle")
    yield Case(
        "an old torch file of another version",
        old.replace(struct.pack("<H", 1001), struct.pack("<H", 1002), 1),
        "unknown version",
    )
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    size = struct.pack("<Q", len(header))
    for name, data in {
        "cut short": size + header + bytes(8),
        "without its header's end": size + header[:-9],
        "with a header as long as the file is not": struct.pack("<Q", 1 << 26) + header + bytes(16),
        "of an unknown dtype": size + header.replace(b"F32", b"Q32") + bytes(16),
        "of the wrong shape": size + header.replace(b"[4]", b"[5]") + bytes(16),
    }.items():
        yield Case(f"a safetensors file {name}", data, "broken safetensors file", "model.safetensors")
    yield Case("a safetensors file of nothing", struct.pack("<Q", 8) + b"{}      ", "holds no tensors", "model.safetensors")


def mistaken() -> Iterator[Case]:
    for name, content, says in (
        ("nothing", b"", "is empty: download it again"),
        ("an HTML page", b"\n<!DOCTYPE html><html><title>Sign in</title></html>", "is an HTML page"),
        ("an XML error", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is an XML page .*AccessDenied"),
        ("a JSON error", b'{"message":\n "Not \x1b[31mfound"}', r"is JSON text \(.*Not .*found"),
        ("plain words", b"404: Not Found", "is no checkpoint of a known kind .it begins with b'404"),
        ("random bytes", bytes(range(200, 40, -1)), "is no checkpoint of a known kind"),
        ("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("a PNG", b"\x89PNG\r\n\x1a\n" + bytes(99), "is an image .PNG"),
        ("a JPEG", b"\xff\xd8\xff\xe0" + bytes(99), "is an image .JPEG"),
        ("a Keras file", b"\x89HDF\r\n\x1a\n" + bytes(99), "is an HDF5 file .Keras"),
        ("an ONNX model", b"\x08\x07\x12\x07pytorch\x1a\x051.9.0" + bytes(99), "is an ONNX model"),
        ("a GGUF file", b"GGUF" + bytes(99), "is a GGUF file"),
        ("one numpy array", b"\x93NUMPY" + bytes(99), "is a single numpy array"),
        ("a script", b"#!/bin/sh\nrm -rf /\n", "is a script"),
        ("a TensorFlow index", bytes(99) + bytes.fromhex("57fb808b247547db"), "is part of a TensorFlow checkpoint"),
    ):
        yield Case(name, content, says)
    yield Case("a TensorFlow shard", b"\x01" * 99, "is part of a TensorFlow checkpoint", "model.ckpt-100.data-00000-of-00001")


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _npy(shape: str) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


def _tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()
