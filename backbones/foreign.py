"""What a file that is no checkpoint really is, told from its first and last bytes, and what to do about it."""

import os
import stat
from pathlib import Path

ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
IMAGES = {b"\x89PNG\r\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"RIFF": "WebP", b"II*\x00": "TIFF"}
OTHERS = {
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file (Keras weights?)", "convert it to PyTorch first"),
    b"GGUF": ("a GGUF file of a language model", "give a PyTorch or safetensors checkpoint"),
    b"\x93NUMPY": ("a single numpy array", "save the weights together with numpy.savez"),
    b"%PDF": ("a PDF document", "download the checkpoint itself"),
    b"\x7fELF": ("a program", "give the checkpoint itself"),
    b"#!": ("a script", "give the checkpoint itself"),
    b"model_checkpoint_path:": ("a TensorFlow index of checkpoints", "convert the checkpoint it names to PyTorch first"),
    b"version https://git-lfs": ("a Git LFS pointer and not the file it stands for", "run `git lfs pull`"),
}
TF_INDEX_END = bytes.fromhex("57fb808b247547db")  # the magic number that ends a LevelDB table


def unusable(path: Path) -> str | None:
    """Why `path` cannot even be opened as a file, or None."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be opened ({error.strerror}): check the path"
    if stat.S_ISDIR(mode):
        return "is a directory: give the file inside that holds the weights"
    if not stat.S_ISREG(mode):
        return "is a device, pipe or socket, not a file: copy its content to a file first"
    if not os.access(path, os.R_OK):
        return "cannot be opened (Permission denied): ask its owner for the right to read it"
    return None if path.stat().st_size else "is empty: download it again"


def unlike_a_checkpoint(name: str, head: bytes, tail: bytes) -> str | None:
    """What the file called `name` is, if its first 512 and last 8 bytes belong to a known kind that holds no checkpoint."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "is an HTML page: the link needs a login or has moved; download the checkpoint itself"
    if text.startswith((b"<?xml", b"<error")):
        return f"is an XML page ({_quoted(head)}): the link is wrong or forbidden; download the checkpoint itself"
    if text.startswith((b"{", b"[")):
        return f"is JSON text ({_quoted(head)}): the server sent a message; download the checkpoint itself"
    for magic, kind in ARCHIVES.items():
        if head.startswith(magic):
            return f"is packed with {kind}: unpack it and give the checkpoint inside"
    for magic, kind in IMAGES.items():
        if head.startswith(magic):
            return f"is an image ({kind}): give the checkpoint itself"
    for magic, (kind, advice) in OTHERS.items():
        if head.startswith(magic):
            return f"is {kind}: {advice}"
    if tail == TF_INDEX_END or (".data-0" in name and not head.startswith((b"PK", b"\x80"))):
        return "is part of a TensorFlow checkpoint: convert it to PyTorch first"
    if head[:1] == b"\x08" and head[2:3] == b"\x12" and head[4:12].isascii():  # ir_version, then producer_name
        return "is an ONNX model: give the PyTorch checkpoint it was exported from"
    return None


def _quoted(head: bytes) -> str:
    return head[:80].decode("utf-8", "replace").strip()
