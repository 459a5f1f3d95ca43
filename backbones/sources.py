"""Where a backbone's weights are, and how they get there. Imports no torch: whether a file is missing is told at once."""

import http.client
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

from backbones.spec import BackboneSpec
from ringbench import files, places, progress
from ringbench.errors import RingbenchError, Unavailable


def is_url(source: str) -> bool:
    return urlparse(source).scheme in {"http", "https"}


def path_of(spec: BackboneSpec) -> Path | None:
    """The file that holds the weights, whether or not it is there yet; None for random weights."""
    if spec.source == "random":
        return None
    if spec.source.startswith("recipe:"):
        return places.checkpoints() / f"{spec.source.removeprefix('recipe:')}.safetensors"
    if is_url(spec.source):
        name = Path(urlparse(spec.source).path).name
        if not (spec.sha256 and spec.sha256[:8] in name):  # `checkpoint.pth` of two projects must not be one file
            name = f"{files.digest(spec.source)[:8]}-{name}"
        return places.checkpoints() / name
    return Path(spec.source)


def missing(spec: BackboneSpec) -> str | None:
    """Why the weights cannot be used now and what to do about it, in one sentence; None where they are there."""
    path = path_of(spec)
    if path is None or path.is_file():
        return None
    if spec.source.startswith("recipe:"):
        recipe = spec.source.removeprefix("recipe:")
        return f"not trained yet; recipe {recipe} writes {path}, and `bench register` gives a file of your own another name"
    if is_url(spec.source):
        return f"{path.name} is not in {path.parent}; put it there, or add --download to fetch {spec.source}"
    return f"{path} does not exist; correct `source` in the registry, or put the file there"


def require(spec: BackboneSpec, *, download: bool = False) -> Path | None:
    """`path_of`, with the file in place and its digest checked.

    Raises Unavailable if the file is missing (and `download` is off or fails), RingbenchError if it is another file than
    the registry promises.
    """
    reason = missing(spec)
    if reason and download and is_url(spec.source):
        _download(spec)
    elif reason:
        raise Unavailable(f"{spec.name}: {reason}")
    path = path_of(spec)
    if path is not None and spec.sha256:
        _check_digest(spec, path)
    return path


def _check_digest(spec: BackboneSpec, path: Path, advice: str = "remove it and fetch it again") -> None:
    found = files.sha256_file(path)
    if not found.startswith(spec.sha256):
        raise RingbenchError(
            f"{spec.name}: {path_of(spec).name} has sha256 {found[: len(spec.sha256)]}, the registry expects {spec.sha256}; "
            f"it is damaged or another file: {advice}"
        )


def _download(spec: BackboneSpec) -> None:
    path = path_of(spec)
    try:
        with (
            urllib.request.urlopen(spec.source, timeout=10) as reply,
            files.atomic_path(path) as temporary,
            progress.bar(f"fetching {path.name}") as update,
        ):
            promised, done = int(reply.headers.get("Content-Length", 0)), 0
            with temporary.open("wb") as file:
                while block := reply.read(1 << 20):
                    done += file.write(block)
                    update(done, promised or done)
            if promised and done != promised:
                raise OSError(f"{done} of {promised} bytes came")
            if spec.sha256:
                _check_digest(spec, temporary, "nothing was kept; is the address right?")
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        raise Unavailable(
            f"{spec.name}: {spec.source} cannot be fetched ({reason}); fetch it elsewhere and put it at {path}"
        ) from None
