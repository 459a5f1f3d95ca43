"""AnnotatedSet: images with boxes, masks and keypoints in COCO's form, whatever they are stored as."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from imagesets import providers
from imagesets.providers import missing
from imagesets.providers.source import Boxes
from imagesets.spec import ImagesetSpec
from imagesets.validation import Report, validate
from ringbench.errors import RingbenchError, Unavailable, UsageError

__all__ = ["AnnotatedSet", "AnnotatedSplit", "Keypoints", "load", "missing"]


@dataclass(frozen=True)
class Keypoints:
    """The keypoints of an object, in the order of the annotations."""

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[str, str], ...]  # names that a mirror exchanges
    sigmas: tuple[float, ...]  # COCO's: how far annotators disagree, in units of sqrt(area)


@dataclass(frozen=True, eq=False)
class AnnotatedSplit:
    """The images and annotations of one split, as COCO writes them: boxes are x, y, width, height in pixels.

    `file_name` is absolute. The annotations of a VOC-style set also hold `difficult`, 0 or 1. An object without a mask, or with a
    broken one, has no `segmentation`; where the set has keypoints every object has them, those that are not known as zeros.
    """

    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]  # id and name, in the order of the set's classes
    report: dict[str, dict[str, Any]] = field(default_factory=dict)  # {problem: {"count": n, "examples": [...]}}
    lost: list[tuple[str, str]] = field(default_factory=list)  # (problem, file) of each image that cannot be used

    def coco(self) -> dict[str, Any]:
        """What pycocotools' COCO would load."""
        return {"images": self.images, "annotations": self.annotations, "categories": self.categories}


@dataclass(frozen=True, eq=False)
class AnnotatedSet:
    """`load` makes it."""

    spec: ImagesetSpec
    classes: list[str]
    category_ids: list[int]  # the annotations' id of each class
    keypoints: Keypoints | None
    splits: dict[str, AnnotatedSplit]  # train and test
    notes: list[str]  # what a person should know about this set
    style: Literal["coco", "voc"]
    root: Path

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the images (paths below the root, sizes of the files), everything annotated on them, and what that means."""
        fields = ("category_id", "bbox", "area", "iscrowd", "difficult", "segmentation", "keypoints")
        points = self.keypoints and [self.keypoints.names, self.keypoints.flip_pairs, self.keypoints.sigmas]
        meaning = json.dumps([self.classes, self.category_ids, points, self.style])
        return hashlib.sha256(f"{meaning}\0{self._hash(sizes=True, fields=fields)}".encode()).hexdigest()

    @cached_property
    def split_hash(self) -> str:
        """sha256 of which image, with which boxes, is in which split."""
        return self._hash(sizes=False, fields=("category_id", "bbox", "iscrowd", "difficult"))

    def _hash(self, *, sizes: bool, fields: tuple[str, ...]) -> str:
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            on_image = defaultdict(list)
            for annotation in split.annotations:
                on_image[annotation["image_id"]].append([annotation.get(field) for field in fields])
            for image in split.images:
                path = image["file_name"]
                key = os.path.relpath(path, self.root).replace(os.sep, "/")
                size = os.stat(path).st_size if sizes else ""  # noqa: PTH116 - a hundred thousand times
                objects = json.dumps([image["id"], on_image[image["id"]]])  # predictions name images by their ids
                digest.update(os.fsencode(f"{name}\0{key}\0{size}\0{objects}\n"))
        return digest.hexdigest()


def load(spec: ImagesetSpec, data_dir: Path) -> AnnotatedSet:
    """Read and check every annotation, and the head and the end of every image.

    What is wrong is counted in each split's `report` and told in `notes`. Training does without what cannot be learned from;
    the test split keeps every box that the official evaluations count.

    Raises Unavailable where files are missing, with the place to put them; RingbenchError where the annotations are hopeless:
    unreadable, contradictory, or more than half of the images missing or broken; UsageError for a set without boxes.
    """
    provider, root = providers.find(spec.provider), providers.root_of(spec, data_dir)
    if not hasattr(provider, "boxes"):
        raise UsageError(f"image set '{spec.name}' has no boxes: they come from the providers coco, voc and shapes")
    if reason := provider.missing(spec, root):
        raise Unavailable(reason)
    try:
        found: Boxes = provider.boxes(spec, root)
    except OSError as error:
        raise Unavailable(f"image set '{spec.name}' cannot be read: {error}") from error
    categories = _categories(spec, found)
    if spec.classes not in (None, len(categories)):
        raise RingbenchError(f"image set '{spec.name}' has {len(categories)} classes in {root}; {spec.classes} were expected")
    keypoints = found.keypoints or spec.keypoints
    splits, notes = {}, []
    for name, document in found.splits.items():
        report = Report(found.lost.get(name, []))
        images, annotations = validate(
            spec.name, name, document, categories, report, n_keypoints=len(keypoints.names) if keypoints else None
        )
        splits[name] = AnnotatedSplit(images, annotations, categories, report.as_dict(), report.lost)
        notes += [f"{name}: {sentence}" for sentence in report.sentences()]
    _refuse_leak(spec, splits)
    return AnnotatedSet(
        spec,
        [category["name"] for category in categories],
        [category["id"] for category in categories],
        keypoints and Keypoints(tuple(keypoints.names), tuple(map(tuple, keypoints.flip_pairs)), tuple(keypoints.sigmas)),
        splits,
        notes,
        found.style,
        found.root,
    )


def _refuse_leak(spec: ImagesetSpec, splits: dict[str, AnnotatedSplit]) -> None:
    """An image in train and test, whatever its paths, would make numbers too good."""
    seen: dict[tuple[int, int], tuple[str, str]] = {}
    for name, split in splits.items():
        for image in split.images:
            stat = os.stat(image["file_name"])  # noqa: PTH116 - a hundred thousand times
            path, elsewhere = seen.setdefault((stat.st_dev, stat.st_ino), (image["file_name"], name))
            if elsewhere != name:
                raise RingbenchError(
                    f"image set '{spec.name}': {path} in {elsewhere} and {image['file_name']} in {name} are one file, so that a "
                    "number would come out too good; remove one of them"
                )


def _categories(spec: ImagesetSpec, found: Boxes) -> list[dict[str, Any]]:
    """The categories that count, in order. Train and test must mean the same by an id."""
    by_id: dict[Any, str] = {}
    for split, document in found.splits.items():
        for category in document["categories"]:
            if by_id.setdefault(category["id"], category["name"]) != category["name"]:
                raise RingbenchError(
                    f"image set '{spec.name}': category {category['id']} is '{by_id[category['id']]}' and, in {split}, "
                    f"'{category['name']}'; one id must mean one class"
                )
    names = {name: key for key, name in sorted(by_id.items())}
    if len(names) < len(by_id):
        raise RingbenchError(f"image set '{spec.name}' has two categories of one name among {', '.join(by_id.values())}")
    for name in spec.class_names or ():
        if name not in names:
            raise RingbenchError(f"image set '{spec.name}' has no class '{name}'; its annotations have {', '.join(names)}")
    return [{"id": names[name], "name": name} for name in spec.class_names or names]
