"""The rule of the Pascal VOC2007 devkit (VOCevaldet.m) for which boxes are true positives."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from transfer.detection.matching import FALSE, IGNORED, THRESHOLDS, TRUE, Matches, ranked

Record = dict[str, Any]


def match(document: Record, rows: np.ndarray) -> Matches:
    """rows (D, 7) as `predictions.results` makes them.

    Each detection belongs to the object of its class that it overlaps most, taken or not. With an overlap of at least the
    threshold it is the object's true positive where it is the first, a false positive where it is not, and ignored where the
    object is difficult (here: crowd).
    """
    truths = defaultdict(list)
    for truth in document["annotations"]:
        truths[truth["category_id"], truth["image_id"]].append(truth)
    rows = rows[np.lexsort((-rows[:, 5], rows[:, 0], rows[:, 6]))]  # by category, image, falling score
    pairs = rows[:, [6, 0]].astype(np.int64)
    first = np.flatnonzero((np.diff(pairs, axis=0, prepend=-1) != 0).any(1))
    outcomes = [np.empty((0, len(THRESHOLDS)), np.uint8)]
    for start, end in pairwise([*first, len(rows)]):
        outcomes.append(_outcomes(truths[tuple(pairs[start].tolist())], rows[start:end, 1:5]))
    wanted = np.array([not truth["iscrowd"] for truth in document["annotations"]], bool)
    return ranked(document, *pairs.T, rows[:, 5], {"all": np.concatenate(outcomes)}, {"all": wanted})["all"]


def _outcomes(truths: list[Record], boxes: np.ndarray) -> np.ndarray:
    """(detections, T) of one class in one image, the best first."""
    outcome = np.full((len(boxes), len(THRESHOLDS)), FALSE, np.uint8)
    if not truths:
        return outcome
    overlap = _iou(boxes, np.array([truth["bbox"] for truth in truths], float))
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
