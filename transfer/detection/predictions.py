"""What an evaluator is given: a COCO document of what is there, and COCO results of what was found, both checked and copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from imagesets.annotated import AnnotatedSplit, Keypoints
from ringbench.errors import RingbenchError, UsageError

KINDS = ("bbox", "segm", "keypoints")
FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
WORDS = {"bbox": "box", "segm": "mask", "keypoints": "keypoints"}
BOX_COLUMNS = ("image_id", "x", "y", "width", "height", "score", "category_id")  # COCO's rows of numbers
Record = dict[str, Any]


def document(split: AnnotatedSplit, categories: list[Record], kind: str, keypoints: Keypoints | None) -> Record:
    """Images, annotations and categories. An object that is difficult, in VOC's word, becomes one of COCO's crowd.

    Raises UsageError for an unknown kind or keypoints without their sigmas, RingbenchError where the split has none of a kind.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind '{kind}' of evaluation; kinds are {', '.join(KINDS)}")
    if kind == "keypoints" and keypoints is None:
        raise UsageError("evaluating keypoints needs their sigmas: pass `keypoints`, those of the image set")
    ids = {category["id"] for category in categories}
    annotations = [dict(truth) for truth in split.annotations if truth["category_id"] in ids]
    lacking = sum(FIELDS[kind] not in truth for truth in annotations)
    if lacking:
        raise RingbenchError(f"{lacking} of {len(annotations)} annotations have no {WORDS[kind]} to compare with")
    for truth in annotations:
        truth["iscrowd"] = int(passed_over(truth))
    images = [{key: image[key] for key in ("id", "height", "width")} for image in split.images]
    return {"images": images, "annotations": annotations, "categories": categories}


def passed_over(annotation: Record) -> bool:
    """Whether no detector is asked to find it: COCO's crowd, VOC's difficult objects."""
    return bool(annotation.get("iscrowd") or annotation.get("difficult"))


def results(document: Record, predictions: list[Record], kind: str, keypoints: Keypoints | None) -> np.ndarray | list[Record]:
    """Boxes as rows of BOX_COLUMNS, which evaluators read quickest; masks and keypoints as records of nothing else, so that areas
    are taken from them.

    Raises RingbenchError with the first prediction that is of another image or category, incomplete or not finite.
    """
    field = FIELDS[kind]
    try:
        ids = np.array([(p["image_id"], p["category_id"]) for p in predictions], np.int64).reshape(-1, 2)
        scores = np.array([p["score"] for p in predictions], float)
        shapes = [p[field] for p in predictions]
    except KeyError as error:
        raise RingbenchError(f"a prediction lacks {error}; expected image_id, category_id, {field} and score") from None
    for column, what in enumerate(("image", "category")):
        known = [item["id"] for item in document["images" if what == "image" else "categories"]]
        unknown = np.setdiff1d(ids[:, column], known)
        if len(unknown):
            raise RingbenchError(f"predictions name the {what} {unknown[0]}, which the test split does not have")
    if kind == "segm":
        _check_masks(document, ids[:, 0].tolist(), shapes)
        numbers = np.zeros((len(shapes), 0))
    else:
        numbers = _numbers(shapes, field, 4 if kind == "bbox" else 3 * len(keypoints.names))
    if not (np.isfinite(scores).all() and np.isfinite(numbers).all()):
        raise RingbenchError(f"a prediction has a score or {field} that is not finite; look at the detector")
    if kind == "bbox":
        return np.column_stack([ids[:, 0], numbers, scores, ids[:, 1]])
    found = [{key: p[key] for key in ("image_id", "category_id", field, "score")} for p in predictions]
    if kind == "keypoints":  # the box that evaluators would draw around them, one by one and slowly
        points = numbers.reshape(-1, len(keypoints.names), 3)[:, :, :2]
        low, high = points.min(1), points.max(1)
        for p, box in zip(found, np.hstack([low, high - low]).tolist(), strict=True):
            p["bbox"] = box
    return found


def _numbers(shapes: list[list[float]], field: str, length: int) -> np.ndarray:
    try:
        return np.array(shapes, float).reshape(-1, length)
    except ValueError:
        other = next((len(shape) for shape in shapes if len(shape) != length), length)
        raise RingbenchError(f"a prediction has {other} numbers as {field}; expected {length}") from None


def _check_masks(document: Record, image_ids: list[int], shapes: list[Any]) -> None:
    sizes = {image["id"]: [image["height"], image["width"]] for image in document["images"]}
    for image_id, shape in zip(image_ids, shapes, strict=True):
        if not isinstance(shape, dict) or list(shape.get("size", ())) != sizes[image_id]:
            raise RingbenchError(f"a predicted mask of image {image_id} is no RLE of its size {sizes[image_id]}")
