"""One file over HTTP, whole or not at all: resumed where it broke off, tried again where that helps, checked before it counts.

Proxies are those of the environment (http_proxy, https_proxy, no_proxy), as urllib reads them. Imports no torch.
"""

import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from backbones.foreign import unlike_a_checkpoint
from ringbench import files, progress
from ringbench.network import offline

TRIES = 3
PAUSE_S = 1.0  # before the second try; doubled before each further one
PATIENCE_S = 10  # without a byte
PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that another try may change
BLOCK = 1 << 20
AGENT = {"User-Agent": "ringbench", "Accept-Encoding": "identity"}


class Failed(Exception):
    """Why nothing was fetched, as part of a sentence."""


class _Passing(Exception):
    """A failure that another try may mend."""


def fetch(url: str, path: Path, accept: Callable[[Path], None]) -> None:
    """Write what `url` answers to `path`, once `accept` has raised nothing about it.

    Until then it lies beside `path` under a name of its own, where the next call goes on if the server still has the same file.
    Of several processes that ask for one file, one fetches it.

    Raises Failed, or whatever `accept` raises; what was refused is removed.
    """
    if forbidden := offline():
        raise Failed(f"{forbidden} forbids it")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".{files.digest(url)[:16]}.part"
    with FileLock(f"{part}.lock"):
        if path.exists():
            return
        _whole(url, part, path.name)
        try:
            _refuse_pages(part, path.name)
            accept(part)
        except BaseException:
            _discard(part)
            raise
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
        files.sync_folder(path.parent)
        _discard(part)


def answer(url: str) -> str | None:
    """What is wrong with the link, asked without fetching the file, or None."""
    try:
        try:
            kind = _kind(urllib.request.Request(url, headers=AGENT, method="HEAD"))
        except urllib.error.HTTPError as error:
            if error.code not in {400, 403, 405, 501}:  # servers and signed addresses that know no HEAD
                raise
            kind = _kind(urllib.request.Request(url, headers=AGENT | {"Range": "bytes=0-0"}))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _reason(error)
    return "is a web page, not a file" if kind == "text/html" else None


def _kind(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return reply.headers.get_content_type()


def _whole(url: str, part: Path, label: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            return _continue(url, part, label)
        except _Passing as error:
            if not left:
                raise Failed(f"{error}, tried {TRIES} times") from None
        time.sleep(PAUSE_S * 2 ** (TRIES - left - 1))


def _continue(url: str, part: Path, label: str) -> None:
    """Ask for what `part` lacks. The validator beside it, the server's own mark of the version, keeps two versions apart."""
    validator = part.with_suffix(".version")
    headers, done = dict(AGENT), 0
    if part.exists() and validator.exists():
        done = part.stat().st_size
        headers |= {"Range": f"bytes={done}-", "If-Range": validator.read_text(encoding="utf-8")}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S) as reply:
            if reply.status != 206 or not reply.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                done = 0
            if not done:
                _discard(part)
                if version := _version(reply.headers):
                    validator.write_text(version, encoding="utf-8")
            _receive(reply, part, done, label)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is no beginning of what is there now
            _discard(part)
        raise (_Passing if error.code in PASSING | {416} else Failed)(_reason(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(_reason(error)) from None
    except ValueError as error:
        raise Failed(_reason(error)) from None


def _version(headers: http.client.HTTPMessage) -> str | None:
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _receive(reply: http.client.HTTPResponse, part: Path, done: int, label: str) -> None:
    promised = done + int(reply.headers.get("Content-Length") or 0)
    with part.open("ab" if done else "wb") as file, progress.bar(f"fetching {label}") as update:
        while block := reply.read(BLOCK):
            done += file.write(block)
            update(done, max(promised, done))
    if "Content-Length" in reply.headers and done != promised:
        raise _Passing(f"{done} of {promised} bytes came")


def _refuse_pages(part: Path, name: str) -> None:
    if not part.stat().st_size:
        raise Failed("an empty file came")
    with part.open("rb") as file:
        if told := unlike_a_checkpoint(name, file.read(512), b""):
            raise Failed(f"what came {told}")


def _discard(part: Path) -> None:
    for path in (part, part.with_suffix(".version")):
        path.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with contextlib.closing(error):
            return f"HTTP {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error) or type(error).__name__
