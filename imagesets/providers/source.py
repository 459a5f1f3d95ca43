"""What a provider hands over, and what providers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from imagesets.spec import ImagesetSpec, KeypointSpec, Part
from ringbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Source:
    """Every image of a set, n of them. The images are the files `root / key`, or the rows of `images`."""

    classes: list[str]
    keys: list[str]  # the stable name of each image: its path below the root, or `train/00012`
    labels: Sequence[int]  # positions in `classes`
    official: list[str] | None = None  # `train`, `val` or `test` of each image; None: the set brings no splits
    groups: list[str] | None = None  # images of one group (a track, a person) must stay on one side of a cut
    root: Path | None = None
    images: np.ndarray | None = None  # uint8, n x H x W (gray) or n x H x W x 3
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Boxes:
    """Images with boxes, as COCO documents of `train` and `test`: images (`file_name` absolute), annotations, categories."""

    splits: dict[str, dict[str, Any]]
    root: Path
    style: Literal["coco", "voc"] = "coco"  # whose evaluation goes with them
    keypoints: KeypointSpec | None = None  # of a set that knows its own
    lost: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # split: (problem, file) of images not in its document


def parts_of(spec: ImagesetSpec, example: str) -> list[Part]:
    """The parts of both splits. Raises UsageError where the entry lacks one, with an `example` of a part."""
    if not spec.train or not spec.test:
        raise UsageError(f"image set '{spec.name}' needs `train` and `test`, each a list such as [{example}]")
    return [*spec.train, *spec.test]


def absent(spec: ImagesetSpec, path: Path) -> str:
    origin = f" (they come from {spec.source})" if spec.source else ""
    return f"image set '{spec.name}' is not here: put its files{origin} so that {path} exists"


def no_training_images(spec: ImagesetSpec, place: Path) -> str:
    return f"image set '{spec.name}' has a test split only: a probe needs training images, and {place} has none"


def class_order(names: Iterable[str]) -> list[str]:
    """Sorted; numerically where every name is a number, so that '2' comes before '10'."""
    names = list(names)
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
