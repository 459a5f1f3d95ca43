"""Sets that torchvision knows, with their official splits: one row of TABLE each.

torchvision reads labels and splits; images that are files are decoded as everywhere else. Files lie below the set's root as
torchvision lays them out, so a folder that torchvision downloaded to works as it is. ImageNet is read as ILSVRC lays it out,
`train/<wnid>/` and `val/<wnid>/`; its official validation images are the test split here, as in the literature.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagesets.providers import folder
from imagesets.providers.source import Source, absent
from imagesets.spec import ImagesetSpec
from ringbench.errors import Unavailable, UsageError

# (torchvision's class, root, **arguments) -> images (uint8, n x H x W [x 3], or n paths), n labels, class names
Reader = Callable[..., tuple[Any, Any, list[str]]]


@dataclass(frozen=True)
class Row:
    splits: dict[str, Any]  # our name of each official split -> arguments of torchvision's class (of a folder set: its folder)
    needs: tuple[str, ...]  # below the root, as it is or with .gz; the set is missing where one of them is
    read: Reader | None  # None: a folder set
    group: Callable[[str, int], str] | None = None  # (key, label) -> what must stay on one side of a cut


def _arrays(kind: type, root: Path, **arguments: Any):
    data = kind(root, **arguments)
    return data.data, data.targets, data.classes


def _stl10(kind: type, root: Path, **arguments: Any):
    labelled = type(kind.__name__, (kind,), {"train_list": kind.train_list[:2]})  # without checking 2.6 GB of unlabelled images
    data = labelled(root, **arguments)
    return data.data.transpose(0, 2, 3, 1), data.labels, data.classes


def _idx(kind: type, root: Path, train: bool):
    """MNIST's own format, compressed or not: a header of 4 bytes and 4 bytes per axis, then the bytes."""
    import numpy as np

    def read(part: str) -> np.ndarray:
        path = root / kind.__name__ / "raw" / f"{'train' if train else 't10k'}-{part}-ubyte"
        data = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
        shape = np.frombuffer(data, ">i4", data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    return read("images-idx3"), read("labels-idx1"), kind.classes


def _gtsrb(kind: type, root: Path, **arguments: Any):
    paths, labels = zip(*kind(root, **arguments)._samples, strict=True)
    return paths, labels, [str(i) for i in range(43)]


def _files(kind: type, root: Path, **arguments: Any):
    data = kind(root, **arguments)
    return data._image_files, data._labels, data.classes


def _track(key: str, label: int) -> str:
    """Training files are named TTTTT_FFFFF (track, frame) within a class; each test file is the only one of its track."""
    track, underscore, _ = key.rsplit("/", 1)[1].partition("_")
    return f"{label}/{track}" if underscore else key


def _below(place: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{place}/{name}" for name in names)


FLAG = {"train": {"train": True}, "test": {"train": False}}
NAME = {"train": {"split": "train"}, "test": {"split": "test"}}
NAME_WITH_VAL = {split: {"split": split} for split in ("train", "val", "test")}
IDX = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]
CIFAR10 = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
STL10 = ("class_names.txt", "train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
GTSRB = ("GTSRB/Training", "GTSRB/Final_Test/Images", "GT-final_test.csv")

TABLE = {
    "CIFAR10": Row(FLAG, _below("cifar-10-batches-py", *CIFAR10), _arrays),
    "CIFAR100": Row(FLAG, _below("cifar-100-python", "meta", "train", "test"), _arrays),
    "STL10": Row(NAME, _below("stl10_binary", *STL10), _stl10),
    "MNIST": Row(FLAG, _below("MNIST/raw", *IDX), _idx),
    "FashionMNIST": Row(FLAG, _below("FashionMNIST/raw", *IDX), _idx),
    "GTSRB": Row(NAME, _below("gtsrb", *GTSRB), _gtsrb, _track),
    "Flowers102": Row(NAME_WITH_VAL, _below("flowers-102", "jpg", "imagelabels.mat", "setid.mat"), _files),
    "FGVCAircraft": Row(NAME_WITH_VAL, _below("fgvc-aircraft-2013b/data", "images", "variants.txt"), _files),
    "DTD": Row(NAME_WITH_VAL, _below("dtd/dtd", "images", "labels"), _files),  # partition 1, torchvision's default
    "ImageNet": Row({"train": "train", "test": "val"}, ("train", "val"), None),
}


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    for name in _row(spec).needs:
        if not (root / name).exists() and not (root / f"{name}.gz").exists():
            return absent(spec, root / name)
    return None


def load(spec: ImagesetSpec, root: Path) -> Source:
    """Raises Unavailable where torchvision refuses the files."""
    row = _row(spec)
    if row.read is None:
        return folder.scan(spec, root, row.splits)
    import numpy as np

    parts, keys, labels, official = [], [], [], []
    for split, arguments in row.splits.items():
        try:
            images, targets, classes = row.read(_class(spec), root, **arguments)
        except (RuntimeError, OSError, ValueError, LookupError, EOFError, zlib.error) as error:
            raise Unavailable(
                f"image set '{spec.name}': the files in {root} are incomplete or corrupt; put them there anew"
            ) from error
        if isinstance(images, np.ndarray):
            parts.append(images)
            keys += [f"{split}/{i:05d}" for i in range(len(images))]
        else:
            keys += [Path(path).relative_to(root).as_posix() for path in images]
        labels += [int(label) for label in targets]
        official += [split] * len(targets)
    groups = [row.group(key, label) for key, label in zip(keys, labels, strict=True)] if row.group else None
    files = {"images": np.ascontiguousarray(np.concatenate(parts))} if parts else {"root": root}
    return Source(list(classes), keys, labels, official, groups, **files)


def download(spec: ImagesetSpec, root: Path) -> None:
    """Fetch what is missing, hash-checked by torchvision. ImageNet cannot be fetched."""
    row = _row(spec)
    if row.read is None:
        return
    root.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # torchvision prints; stdout is for results
            for arguments in row.splits.values():
                _class(spec)(root, download=True, **arguments)
    except (RuntimeError, OSError) as error:
        raise Unavailable(
            f"image set '{spec.name}' could not be downloaded: {error}; or {absent(spec, root / row.needs[0])}"
        ) from None


def _row(spec: ImagesetSpec) -> Row:
    if spec.dataset not in TABLE:
        raise UsageError(
            f"image set '{spec.name}': no set '{spec.dataset}' of torchvision is known; known are {', '.join(TABLE)}"
        )
    return TABLE[spec.dataset]


def _class(spec: ImagesetSpec) -> type:
    import torchvision.datasets

    return getattr(torchvision.datasets, spec.dataset)
