"""What an evaluator is given: a COCO document of what is there, and COCO results of what was found, both checked and copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from imagesets.annotated import AnnotatedSplit, Keypoints
from ringbench.errors import RingbenchError, UsageError

KINDS = ("bbox", "segm", "keypoints")
FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
WORDS = {"bbox": "box", "segm": "mask", "keypoints": "keypoints"}
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
        truth["iscrowd"] = int(bool(truth["iscrowd"] or truth.get("difficult")))
    images = [{key: image[key] for key in ("id", "height", "width")} for image in split.images]
    return {"images": images, "annotations": annotations, "categories": categories}


def results(document: Record, predictions: list[Record], kind: str, keypoints: Keypoints | None) -> list[Record]:
    """The predictions with what `kind` needs alone, so that an evaluator takes areas from boxes, masks or keypoints accordingly.

    Raises RingbenchError with the first prediction that is of another image or category, incomplete or not finite.
    """
    field = FIELDS[kind]
    sizes = {image["id"]: [image["height"], image["width"]] for image in document["images"]}
    categories = {category["id"] for category in document["categories"]}
    try:
        found = [{key: p[key] for key in ("image_id", "category_id", field, "score")} for p in predictions]
    except KeyError as error:
        raise RingbenchError(f"a prediction lacks {error}; expected image_id, category_id, {field} and score") from None
    for what, known in (("image", sizes.keys()), ("category", categories)):
        if unknown := {p[f"{what}_id"] for p in found} - known:
            raise RingbenchError(f"predictions name the {what} {min(unknown)}, which the test split does not have")
    numbers = [[p["score"] for p in found]]
    if kind == "segm":
        for p in found:
            if not isinstance(p[field], dict) or list(p[field].get("size", ())) != sizes[p["image_id"]]:
                raise RingbenchError(f"a predicted mask of image {p['image_id']} is no RLE of its size {sizes[p['image_id']]}")
    else:
        length = 4 if kind == "bbox" else 3 * len(keypoints.names)
        for p in found:
            if len(p[field]) != length:
                raise RingbenchError(f"a prediction has {len(p[field])} numbers as {field}; expected {length}")
        numbers.append([p[field] for p in found])
    if not all(np.isfinite(np.array(values, float)).all() for values in numbers):
        raise RingbenchError(f"a prediction has a score or {field} that is not finite; look at the detector")
    return found
