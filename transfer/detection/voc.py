"""The rule of the Pascal VOC2007 devkit (VOCevaldet.m) for which boxes are true positives."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from transfer.detection.matching import FALSE, IGNORED, THRESHOLDS, TRUE, Matches, ranked

Record = dict[str, Any]


def match(document: Record, predictions: list[Record]) -> Matches:
    """Each detection belongs to the object of its class that it overlaps most, taken or not.

    With an overlap of at least the threshold it is the object's true positive where it is the first, a false positive where it
    is not, and ignored where the object is difficult (here: crowd).
    """
    truths, found = defaultdict(list), defaultdict(list)
    for records, groups in ((document["annotations"], truths), (predictions, found)):
        for record in records:
            groups[record["category_id"], record["image_id"]].append(record)
    best_first = [p for pair in sorted(found) for p in sorted(found[pair], key=lambda p: -p["score"])]
    outcomes = [np.empty((0, len(THRESHOLDS)), np.uint8)]
    outcomes += [_outcomes(truths[pair], sorted(found[pair], key=lambda p: -p["score"])) for pair in sorted(found)]
    columns = (np.array([p[key] for p in best_first]) for key in ("category_id", "image_id", "score"))
    wanted = [truth for truth in document["annotations"] if not truth["iscrowd"]]
    return ranked(document, *columns, {"all": np.concatenate(outcomes)}, {"all": wanted})["all"]


def _outcomes(truths: list[Record], best_first: list[Record]) -> np.ndarray:
    """(detections, T) of one class in one image."""
    outcome = np.full((len(best_first), len(THRESHOLDS)), FALSE, np.uint8)
    if not truths:
        return outcome
    overlap = _iou(np.array([p["bbox"] for p in best_first], float), np.array([truth["bbox"] for truth in truths], float))
    nearest = overlap.argmax(1)
    close = overlap.max(1)[:, None] >= THRESHOLDS
    for i, truth in enumerate(truths):
        mine = close & (nearest == i)[:, None]
        if truth["iscrowd"]:
            outcome[mine] = IGNORED
        else:
            outcome[mine & (np.cumsum(mine, 0) == 1)] = TRUE
    return outcome


def _iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) boxes x, y, width, height -> (n, m). The devkit adds 1 to each edge because it counts pixels; here the
    edges are continuous and the areas the same.
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:], b[None, :, :2] + b[None, :, 2:])
    shared = (high - low).clip(0).prod(-1)
    union = a[:, 2:].prod(-1)[:, None] + b[:, 2:].prod(-1)[None] - shared
    return shared / np.maximum(union, np.finfo(float).tiny)
