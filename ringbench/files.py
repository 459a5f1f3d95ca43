"""Files that are whole or absent, and hashes of what they hold."""

import contextlib
import errno
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringbench.errors import RingbenchError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; on success it is synced and renamed over `path`, on failure removed.

    An OSError that says no file, or the temporary one, says `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            sync(temporary)
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes 0600; the file should be as readable as any other
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError say `path` where it says no file at all, as of a full disk, or a temporary one beside `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(f".{path.name}."):
            error.filename, error.filename2 = str(path), None
        raise


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """No other process is in here with the same folder, which need not exist. Raises RingbenchError where one is."""
    from filelock import FileLock, Timeout

    place = folder.resolve()  # `.` has no name, and by another name or a link it is the same folder
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place.parent / f".{place.name}.lock", timeout=0):
            yield
    except Timeout:
        raise RingbenchError(f"another process is at work in {folder}; wait for it, or choose another folder") from None


def write_text(path: Path, text: str) -> None:
    """As UTF-8. What it cannot hold, the bytes of a file name that is no text, is written as its escape: in JSON the same."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON with sorted keys: equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """What was written to a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_file(path: Path) -> str:
    """Computed once for a file that does not change: large checkpoints are asked about several times in a run."""
    status = Path(path).stat()
    return _sha256(Path(path).resolve(), (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache
def _sha256(path: Path, _state: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """sha256 of a JSON-able value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
