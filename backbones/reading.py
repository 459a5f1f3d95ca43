"""Any checkpoint file → a tree of CPU tensors, without running anything the file says.

A safetensors file is mapped as it is. Everything else is read by backbones.untrusted.sandbox in a process of its own, with
limited memory and time, which knows neither torch nor the classes a pickle names and answers with a safetensors file.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from backbones import foreign
from backbones.untrusted.sandbox import REFUSED
from ringbench import places
from ringbench.errors import RingbenchError
from ringbench.files import sha256_file

CHILD = "import sys; sys.path.append(sys.argv[1]); from backbones.untrusted import sandbox; sys.exit(sandbox.main(sys.argv[2]))"
ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30  # seconds; more for large files
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # without these some Pythons do not start


@dataclass(frozen=True, eq=False)
class Stub:
    """Stands where the file has an object of a class that is not allowed to be itself.

    `content` is what the file says about it, as far as it does: `args`, `items`, `entries` and `state`.
    """

    name: str
    content: dict[str, Any]

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, eq=False)
class Document:
    """A checkpoint.

    `tree`       dicts, lists, tuples, frozensets, CPU tensors (numpy arrays too), numbers, strings, bytes, None and Stubs.
                 Dtypes, strides and shared storages are as in the file; a pickled module is the dict of its parameters,
                 buffers and submodules; dtypes and devices are strings.
    `container`  zip pickle, legacy pickle, plain pickle, torchscript, npz or safetensors
    `stubs`      the globals that were replaced by Stubs
    """

    tree: Any
    container: str
    stubs: list[str]
    file_sha256: str


def read(path: Path) -> Document:
    """Read a checkpoint of any container, told by its content and never by its name.

    Raises:
        RingbenchError: what the file really is, and what to do.
    """
    if reason := foreign.unusable(path):
        raise _failure(path, reason)
    with path.open("rb") as file:
        head = file.read(512)
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    is_safetensors = head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100 << 20  # the JSON header and its length
    if not is_safetensors and (reason := foreign.unlike_a_checkpoint(path.name, head, tail)):
        raise _failure(path, reason)
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(sha256_file, path)
        tree, container, stubs = (_mapped(path), "safetensors", []) if is_safetensors else _sandboxed(path)
        return Document(tree, container, stubs, digest.result())


def _mapped(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (SafetensorError, KeyError, ValueError) as error:
        raise _failure(path, f"is a broken safetensors file ({error}): download it again") from None
    if not tensors:
        raise _failure(path, "holds no tensors: give the file with the weights")
    return tensors


def _sandboxed(path: Path) -> tuple[Any, str, list[str]]:
    places.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=places.cache(), prefix="reading-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder, "answer.safetensors")
        _convert(path, answer)
        storages = load_file(answer)  # mapped: the tensors outlive the file's name
    root = json.loads(storages.pop("tree").numpy().tobytes())
    return _tree(root["tree"], storages), root["container"], root["stubs"]


def _tree(node: Any, storages: dict[str, Tensor]) -> Any:
    """The inverse of backbones.untrusted.skeleton."""
    if not isinstance(node, list):
        return node
    kind, *items = node
    match kind:
        case "tensor":
            storage, dtype, offset, shape, stride = items
            return storages[str(storage)].view(getattr(torch, dtype)).as_strided(shape, stride, offset)
        case "dict":
            return {_tree(key, storages): _tree(value, storages) for key, value in items}
        case "bytes":
            return base64.b64decode(items[0])
        case "complex":
            return complex(*items)
        case "stub":
            return Stub(items[0], {part: _tree(value, storages) for part, value in items[1].items()})
    return {"list": list, "tuple": tuple, "set": frozenset}[kind](_tree(item, storages) for item in items)


def _convert(path: Path, answer: Path) -> None:
    """Have a sandbox write the checkpoint `path` to the safetensors file `answer`."""
    command = [sys.executable, "-I", "-S", "-B", "-c", CHILD, str(ROOT), str(answer)]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    seconds = PATIENCE + path.stat().st_size / 2e6
    try:
        with path.open("rb") as file:
            child = subprocess.run(command, stdin=file, capture_output=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise _failure(path, f"took over {seconds:.0f} s to read, as only hostile files do: do not use it") from None
    if child.returncode == REFUSED:
        raise _failure(path, child.stdout.decode(errors="replace"))
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _failure(path, f"made its reader stop ({last or f'status {child.returncode}'}): free memory, or do not use it")


def _failure(path: Path, reason: str) -> RingbenchError:
    """One printable line, whatever the file put into the reason."""
    line = " ".join(f"{path} {reason}".split())
    return RingbenchError("".join(c if c.isprintable() else "?" for c in line)[:500])
