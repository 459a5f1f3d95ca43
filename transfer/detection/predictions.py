"""What an evaluator is given: a COCO document of what is there, and COCO results of what was found, both checked and copied."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from imagesets.annotated import AnnotatedSplit, Keypoints
from imagesets.validation import passed_over
from ringbench.errors import RingbenchError, UsageError

KINDS = ("bbox", "segm", "keypoints")
FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
WORDS = {"bbox": "box", "segm": "mask", "keypoints": "keypoint"}
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


def results(document: Record, predictions: list[Record], kind: str, keypoints: Keypoints | None) -> np.ndarray | list[Record]:
    """Boxes as rows of BOX_COLUMNS, which evaluators read quickest; masks and keypoints as records of nothing else, so that areas
    are taken from them.

    Raises RingbenchError with the first prediction that is of another image or category, incomplete or not finite.
    """
    field = FIELDS[kind]
    try:
        ids = [(p["image_id"], p["category_id"]) for p in predictions]
        scores, shapes = [p["score"] for p in predictions], [p[field] for p in predictions]
    except KeyError as error:
        raise RingbenchError(f"a prediction lacks {error}; expected image_id, category_id, {field} and score") from None
    except TypeError:
        raise RingbenchError(f"a prediction is no mapping; expected image_id, category_id, {field} and score") from None
    ids = _array(ids, 2, "image_id and category_id", kinds="iu")
    scores = _array([(score,) for score in scores], 1, "score")[:, 0]
    for column, what in enumerate(("image", "category")):
        known = [item["id"] for item in document["images" if what == "image" else "categories"]]
        unknown = np.setdiff1d(ids[:, column], known)
        if len(unknown):
            raise RingbenchError(f"predictions name the {what} {unknown[0]}, which the test split does not have")
    if kind == "segm":
        _check_masks(document, ids[:, 0].tolist(), shapes)
        numbers = np.zeros((len(shapes), 0))
    else:
        numbers = _array(shapes, 4 if kind == "bbox" else 3 * len(keypoints.names), field)
    if not (np.isfinite(scores).all() and np.isfinite(numbers).all()):
        raise RingbenchError(f"a prediction has a score or {field} that is not finite; look at the detector")
    if kind == "bbox":
        return np.column_stack([ids[:, 0], numbers, scores, ids[:, 1]]).astype(float)
    found = [{key: p[key] for key in ("image_id", "category_id", field, "score")} for p in predictions]
    if kind == "keypoints":  # the box that evaluators would draw around them, one by one and slowly
        points = numbers.reshape(-1, len(keypoints.names), 3)[:, :, :2]
        low, high = points.min(1), points.max(1)
        for p, box in zip(found, np.hstack([low, high - low]).tolist(), strict=True):
            p["bbox"] = box
    return found


def _array(rows: list[Any], length: int, what: str, kinds: str = "iuf") -> np.ndarray:
    """(len(rows), length) of numbers, of whole ones for the kinds "iu"."""
    if not rows:
        return np.zeros((0, length), np.int64)
    with contextlib.suppress(ValueError):  # of rows of different lengths
        array = np.array(rows)
        if array.dtype.kind in kinds and array.shape == (len(rows), length):
            return array
    odd = next((row for row in rows if not _fits(row, length, kinds)), rows[0])
    number = f"{'' if 'f' in kinds else 'whole '}number{'s' * (length > 1)}"
    raise RingbenchError(f"a prediction has {str(odd)[:80]} as {what}; expected {length} {number}")


def _fits(row: Any, length: int, kinds: str) -> bool:
    types = (int, float) if "f" in kinds else (int,)
    return isinstance(row, list | tuple) and len(row) == length and all(type(x) in types for x in row)


def _check_masks(document: Record, image_ids: list[int], shapes: list[Any]) -> None:
    sizes = {image["id"]: [image["height"], image["width"]] for image in document["images"]}
    for image_id, shape in zip(image_ids, shapes, strict=True):
        if not isinstance(shape, dict) or shape.get("size") not in (sizes[image_id], tuple(sizes[image_id])):
            raise RingbenchError(f"a predicted mask of image {image_id} is no RLE of its size {sizes[image_id]}")
