"""Where a backbone's weights are, and how they get there. Imports no torch: whether a file is missing is told at once."""

import contextlib
import json
import os
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

from backbones import downloads
from backbones.spec import BackboneSpec
from ringbench import files, places
from ringbench.errors import RingbenchError, Unavailable
from ringbench.network import offline


def address(source: str) -> str | None:
    """Where a file of the net is fetched from; None for any other source. HF_ENDPOINT names another hub."""
    if source.startswith("hf:"):
        owner, name, *file = source.removeprefix("hf:").split("/")
        hub = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        return f"{hub}/{owner}/{name}/resolve/main/{quote('/'.join(file) or 'model.safetensors')}"
    return source if urlparse(source).scheme in {"http", "https"} else None


def path_of(spec: BackboneSpec) -> Path | None:
    """The file that holds the weights, whether or not it is there yet; None for random weights."""
    if spec.source == "random":
        return None
    if spec.source.startswith("recipe:"):
        return places.checkpoints() / f"{spec.source.removeprefix('recipe:')}.safetensors"
    if url := address(spec.source):
        name = Path(unquote(urlparse(url).path)).name
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
    if url := address(spec.source):
        if forbidden := offline():
            return f"{path.name} is not in {path.parent} and {forbidden} forbids to fetch it; put it there: {url}"
        return f"{path.name} is not in {path.parent}; put it there, or add --download to fetch {url}"
    return f"{path} does not exist; correct `source` in the registry, or put the file there"


def require(spec: BackboneSpec, *, download: bool = False) -> Path | None:
    """`path_of`, with the file in place and its digest checked.

    Raises Unavailable if the file is missing (and `download` is off or fails), RingbenchError if it is another file than
    the registry promises or than the one that was there before.
    """
    reason, path = missing(spec), path_of(spec)
    if reason and download and address(spec.source) and not offline():
        _download(spec, path)
    elif reason:
        raise Unavailable(f"{spec.name}: {reason}")
    if path is not None:
        check(spec, path)
    return path


def check(spec: BackboneSpec, path: Path) -> str | None:
    """Compare the file with the digest that is published or was recorded at its first use, which this may be.

    Returns "published", "recorded" or "new"; None for a file of the user's own without a digest. Raises RingbenchError if it is
    another file.
    """
    fetched = address(spec.source) is not None
    if not fetched and not spec.sha256:
        return None
    found = files.sha256_file(path)
    if spec.sha256 and not found.startswith(spec.sha256):
        raise RingbenchError(_other(path.name, found, spec))
    if not fetched:
        return "published"
    record = record_of(path)
    if record.is_file():
        first = _recorded(record)
        if first != found:
            raise RingbenchError(
                f"{spec.name}: {path.name} has sha256 {found[:12]}, but had {first[:12]} when it was first used; it has changed: "
                f"put the first one back, or remove {record.name} to trust this one"
            )
        return "published" if spec.sha256 else "recorded"
    with contextlib.suppress(OSError):  # a folder that many share may be read only
        files.write_json(record, {"sha256": found, "bytes": path.stat().st_size, "source": spec.source})
    return "published" if spec.sha256 else "new"


def record_of(path: Path) -> Path:
    """What is remembered of a file that came from elsewhere."""
    return path.with_name(f"{path.name}.sha256.json")


def _recorded(record: Path) -> str:
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["sha256"])
    except (ValueError, LookupError, TypeError):
        raise RingbenchError(f"{record} is no record of a sha256; remove it, and the file beside it is trusted anew") from None


def _other(name: str, found: str, spec: BackboneSpec, advice: str = "remove it and fetch it again") -> str:
    return (
        f"{spec.name}: {name} has sha256 {found[: len(spec.sha256)]}, the registry expects {spec.sha256}; "
        f"it is damaged or another file: {advice}"
    )


def _download(spec: BackboneSpec, path: Path) -> None:
    url = address(spec.source)

    def accept(part: Path) -> None:
        if spec.sha256 and not (found := files.sha256_file(part)).startswith(spec.sha256):
            advice = "nothing was kept; is the address right?"
            raise RingbenchError(_other(path.name, found, spec, advice))

    try:
        downloads.fetch(url, path, accept)
    except (downloads.Failed, OSError) as error:
        raise Unavailable(f"{spec.name}: {url} cannot be fetched ({error}); fetch it elsewhere and put it at {path}") from None
