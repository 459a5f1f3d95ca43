"""ImageSet: the images, labels and splits of one set, whatever it is stored as."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from imagesets import providers, splits
from imagesets.decode import decode
from imagesets.providers import missing
from imagesets.providers.source import Source, no_training_images
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError, Unavailable, UsageError
from ringbench.network import offline

__all__ = ["ImageSet", "load", "missing"]
STATUS = np.dtype([("size", "i8"), ("modified", "i8"), ("changed", "i8"), ("device", "u8"), ("inode", "u8")])


@dataclass(frozen=True, eq=False)
class ImageSet:
    """n labelled images; `load` makes it. The images are the files `root / keys[i]`, or the rows of `images`."""

    spec: ImagesetSpec
    classes: list[str]
    labels: np.ndarray  # int64 (n,)
    groups: np.ndarray | None  # int64 (n,): images with the same number (one track, one person) never cross a cut
    keys: list[str]  # the stable name of each image: its path below the root, or `train/00012`
    splits: dict[str, np.ndarray]  # train, val, test: sorted int64 indices, disjoint
    notes: list[str]  # what a person should know about this set
    root: Path | None = None
    images: np.ndarray | None = None  # uint8, n x H x W or n x H x W x 3; read-only

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def trainval(self) -> np.ndarray:
        return np.union1d(self.splits["train"], self.splits["val"])

    def read(self, i: int) -> np.ndarray:
        """Image i as uint8 RGB, H x W x 3, in its own size; it may be read-only. Raises BadImage."""
        return decode(self.root / self.keys[i] if self.images is None else self.images[i])

    @cached_property
    def split_hash(self) -> str:
        """sha256 of which image, with which label, is in which split."""
        return _hash(f"{name}\0{self.keys[i]}\0{self.labels[i]}\n" for name in splits.SPLITS for i in self.splits[name].tolist())

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of images and labels in their order: of files the paths below the root and the sizes, of arrays every byte."""
        if self.images is None:
            sizes = self._files["size"].tolist()
            return _hash(
                f"{key}\0{size}\0{label}\n" for key, size, label in zip(self.keys, sizes, self.labels.tolist(), strict=True)
            )
        digest = hashlib.sha256(f"{self.images.shape}\n".encode())
        digest.update(self.images)
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def local_state(self) -> str:
        """sha256 that also changes when a file here is replaced by another of its size: what a cache on this machine needs.

        Unlike the fingerprint it holds the times of the files, and so is another on another machine. Their contents' times can
        be set back, as copying tools do; the times of their inodes cannot.
        """
        if self.images is not None:
            return self.fingerprint
        return _hash([self.fingerprint, *(f"{times}\n" for times in self._files[["modified", "changed"]].tolist())])

    @cached_property
    def _files(self) -> np.ndarray:
        """What the file system says of each image, asked once."""
        return np.fromiter(map(self._status, self.keys), STATUS, len(self.keys))

    def _status(self, key: str) -> tuple[int, ...]:
        path = f"{self.root}/{key}"
        try:
            status = os.stat(path)  # noqa: PTH116 - a million times
        except OSError as error:
            raise Unavailable(f"image set '{self.spec.name}': {path} cannot be read: {error.strerror}") from None
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino

    def require_measurable(self) -> None:
        """Raises RingbenchError where a number measured on this set would mean nothing: one class, no test image left by the cut,
        or one file, by links or another spelling of its path, in two splits."""
        label, n = f"image set '{self.spec.name}'", len(self)
        if len(self.classes) < 2:
            raise RingbenchError(f"{label} has one class, '{self.classes[0]}'; there is nothing to tell it from: add another")
        if not len(self.splits["test"]):
            apart = "images" if self.groups is None else "groups of images"
            raise RingbenchError(
                f"{label} is too small: no test split can be cut from {n} images of which no class has {apart} to spare; "
                "add some, or a test split"
            )
        if leak := self._leak():
            (one, split), (other, elsewhere) = leak
            raise RingbenchError(
                f"{label}: {one} in {split} and {other} in {elsewhere} are one file, so that a number would come out too good; "
                "remove one of them"
            )

    def _leak(self) -> list[tuple[str, str]] | None:
        """(key, split) of two images that are one file and in different splits."""
        if self.images is not None:
            return None
        split = np.empty(len(self), np.int8)
        for number, part in enumerate(self.splits.values()):
            split[part] = number
        order = np.lexsort((self._files["inode"], self._files["device"]))
        files, split_of = self._files[["device", "inode"]][order], split[order]
        leaks = np.flatnonzero((files[1:] == files[:-1]) & (split_of[1:] != split_of[:-1]))
        names = list(self.splits)
        return [(self.keys[order[i]], names[split_of[i]]) for i in (leaks[0], leaks[0] + 1)] if len(leaks) else None


def load(spec: ImagesetSpec, data_dir: Path, *, download: bool = False) -> ImageSet:
    """Find the images of a set and cut the splits it does not bring.

    Raises Unavailable where files are missing, with the place to put them, or where there is nothing to train on;
    RingbenchError where what is there does not fit: another number of classes, a class without a training image.
    """
    provider, root = providers.find(spec.provider), providers.root_of(spec, data_dir)
    if not hasattr(provider, "load"):
        raise UsageError(f"image set '{spec.name}' has boxes, not a label for each image; it is for tasks of detection")
    reason = provider.missing(spec, root)
    if reason and download and not offline() and hasattr(provider, "download"):
        provider.download(spec, root)
        reason = provider.missing(spec, root)
    if reason:
        raise Unavailable(reason)
    try:
        source = provider.load(spec, root)
    except OSError as error:
        raise Unavailable(f"image set '{spec.name}' cannot be read: {error}") from error
    _check(spec, source, root)
    labels = np.asarray(source.labels, np.int64)
    groups = None if source.groups is None else np.unique(source.groups, return_inverse=True)[1].astype(np.int64)
    parts = splits.cut(labels, groups, source.official, spec.splits)
    notes = [*source.notes, *_uncovered(spec, source.classes, labels, parts)]
    if source.images is not None:
        source.images.setflags(write=False)
    return ImageSet(spec, source.classes, labels, groups, source.keys, parts, notes, source.root, source.images)


def _check(spec: ImagesetSpec, source: Source, root: Path) -> None:
    if source.official is not None and "train" not in source.official:
        raise Unavailable(no_training_images(spec, root))
    if not source.keys:
        raise Unavailable(f"image set '{spec.name}' has no images in {root}")
    if spec.classes not in (None, len(source.classes)):
        raise RingbenchError(f"image set '{spec.name}' has {len(source.classes)} classes in {root}; {spec.classes} were expected")


def _uncovered(spec: ImagesetSpec, classes: list[str], labels: np.ndarray, parts: dict[str, np.ndarray]) -> list[str]:
    """Notes on classes that validation or test do without. A class without a training image is an error."""
    notes = []
    for name, part in parts.items():
        lacking = [classes[c] for c in np.flatnonzero(np.bincount(labels[part], minlength=len(classes)) == 0)]
        if lacking and name == "train":
            raise RingbenchError(
                f"image set '{spec.name}' has no training image of class '{lacking[0]}'; add one or remove the class"
            )
        if lacking:
            names = ", ".join(lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            notes.append(f"no image in {name} of {len(lacking)} of {len(classes)} classes: {names}")
    return notes


def _hash(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(os.fsencode(line))  # names that are no text hash as their bytes
    return digest.hexdigest()
