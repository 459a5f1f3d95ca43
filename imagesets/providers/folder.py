"""Images in folders: `<split>/<class>/**`, or `<class>/**` where the set brings no splits.

Split folders are named train or training, val, valid or validation, test or testing, in any case. A class may hold folders of
its own. Symbolic links are followed. Hidden files and files that are no images are skipped and counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from imagesets.providers.source import Source, absent, class_order, no_training_images
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError, Unavailable

SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff", ".webp", ".jp2",
    ".avif",
)  # fmt: skip


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    if not root.is_dir():
        return absent(spec, root)
    splits = {SPLIT_NAMES.get(name.lower()) for name in _folders(root)}
    if splits - {None, "train"} and "train" not in splits:
        beside = [name for name in _folders(root) if name.lower() not in SPLIT_NAMES]
        return no_training_images(spec, root) + (_ambiguous(spec, root, *splits - {None}) if beside else "")
    if not splits:
        return f"image set '{spec.name}' has no folders in {root}: expected <split>/<class>/ or <class>/ there"
    return None


def load(spec: ImagesetSpec, root: Path) -> Source:
    splits = _splits(spec, root)
    source = scan(spec, root, splits)
    beside = [name for name in _folders(root) if name not in splits.values()]
    if splits and beside:
        source.notes.append(f"folders beside the splits, left out: {', '.join(beside)}")
    return source


def scan(spec: ImagesetSpec, root: Path, splits: dict[str, str]) -> Source:
    """List `root/<splits[name]>/<class>/**`, or `root/<class>/**` where there are no splits.

    Raises RingbenchError where there are no classes or the splits differ in them; Unavailable for a link that leads nowhere.
    """
    folders = splits or {"": ""}
    classes = class_order(_folders(root / folders.get("train", "")))
    if not classes:
        raise RingbenchError(
            f"image set '{spec.name}' has no class folders in {root / folders['train']}; expected <split>/<class>/"
            + _ambiguous(spec, root, folders["train"])
        )
    keys: list[str] = []
    labels: list[int] = []
    official: list[str] = []
    skipped: Counter[str] = Counter()
    for split, folder in folders.items():
        _check_classes(spec, root / folder, classes)
        above = frozenset({_identity(root), _identity(root / folder)})
        for label, name in enumerate(classes):
            found = list(_images(root / folder / name, "/".join(filter(None, (folder, name))), above, skipped))
            keys += found
            labels += [label] * len(found)
            official += [split] * len(found)
    return Source(classes, keys, labels, official if splits else None, root=root, notes=_notes(skipped))


def _splits(spec: ImagesetSpec, root: Path) -> dict[str, str]:
    """{"train": the name of its folder, ...} in the order train, val, test."""
    found: dict[str, str] = {}
    for name in _folders(root):
        split = SPLIT_NAMES.get(name.lower())
        if split in found:
            raise RingbenchError(
                f"image set '{spec.name}' has two {split} folders in {root}: {found[split]} and {name}; keep one"
            )
        if split:
            found[split] = name
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def _ambiguous(spec: ImagesetSpec, root: Path, *names: str) -> str:
    """The end of a sentence about split folders which may be meant as classes."""
    return f"; if '{min(names)}' is a class, put all class folders into a folder {root / 'train'} of its own"


def _check_classes(spec: ImagesetSpec, folder: Path, classes: list[str]) -> None:
    found = _folders(folder)
    for name in sorted(set(found) ^ set(classes)):
        have, lack = ("train", folder) if name in classes else (folder, "train")
        raise RingbenchError(
            f"image set '{spec.name}': class '{name}' is in {have} but not in {lack}; all splits must have the same class folders"
        )


def _folders(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if not _hidden(entry.name) and entry.is_dir())


def _images(folder: Path | str, key: str, above: frozenset, skipped: Counter[str]) -> Iterator[str]:
    """Keys of the images in a folder and below. `above` are the folders it lies in: links back to them are not followed."""
    here = _identity(folder)
    if here in above:
        skipped["links back to a folder above"] += 1
        return
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if _hidden(entry.name):
            skipped["hidden"] += 1
        elif entry.is_dir():
            yield from _images(entry.path, f"{key}/{entry.name}", above | {here}, skipped)
        elif os.path.splitext(entry.name)[1].lower() not in SUFFIXES:  # noqa: PTH122 - a million times
            skipped["no images"] += 1
        elif entry.is_file():
            yield f"{key}/{entry.name}"
        elif not entry.is_symlink():
            skipped["pipes, sockets or devices"] += 1
        else:
            raise Unavailable(f"{entry.path} is a link to a file that is not there; restore the file or remove the link")


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116 - takes both
    return status.st_dev, status.st_ino


def _notes(skipped: Counter[str]) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(skipped.items()))
    return [f"files skipped: {counts}"] if counts else []
