"""COCO's rule for which detections are true positives, applied once to boxes, masks or keypoints.

By ultrafast-pycocotools, in the version whose every outcome is tested to be pycocotools' own; where that version is not
installed, by pycocotools itself.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringbench.errors import Unavailable

FAST = "ultrafast-pycocotools"
PROVEN = "0.1.14"  # the version that the tests compare
IGNORED, TRUE, FALSE = range(3)
THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU or OKS; the same floats as in COCO's own code
AREAS = {"all": (0, 1e5**2), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e5**2)}  # square pixels
Record = dict[str, Any]
Predictions = list[Record] | np.ndarray
# category id, image id and score (D,), by category, image and falling score; of each range of areas the outcomes (D, T)
Found = tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Matches:
    """D detections in the order in which they are counted, by category, falling score, image and rank; P objects to be found.

    Categories and images are positions in their sorted ids. `rank` counts the detections of a category in an image from 0; an
    outcome is IGNORED, TRUE or FALSE.
    """

    category: np.ndarray  # (D,)
    image: np.ndarray  # (D,)
    rank: np.ndarray  # (D,)
    outcome: np.ndarray  # uint8 (D, T)
    wanted_category: np.ndarray  # (P,)
    wanted_image: np.ndarray  # (P,)


def areas(kind: str) -> dict[str, tuple[float, float]]:
    """The ranges of object areas that are reported; COCO annotates no keypoints on small objects."""
    return {name: limits for name, limits in AREAS.items() if (kind, name) != ("keypoints", "small")}


def match(kind: str, document: Record, predictions: Predictions, sigmas: list[float] | None = None) -> dict[str, Matches]:
    """Matches for each range of areas; predictions as `predictions.results` makes them. All records are changed.

    Raises Unavailable where neither evaluator is installed.
    """
    by = _by_ultrafast if _is_proven() else _by_pycocotools
    *detections, outcomes = by(kind, document, predictions, sigmas)
    return ranked(document, *detections, outcomes, _wanted(kind, document["annotations"]))


def ranked(
    document: Record,
    category_id: np.ndarray,
    image_id: np.ndarray,
    score: np.ndarray,
    outcomes: dict[str, np.ndarray],
    wanted: dict[str, np.ndarray],
) -> dict[str, Matches]:
    """Matches of detections that come by category, image and falling score; where scores tie, they stay in this order.

    wanted: bool for each annotation, whether it has to be found.
    """
    category_ids, image_ids = (np.sort([item["id"] for item in document[key]]) for key in ("categories", "images"))
    category, image = np.searchsorted(category_ids, category_id), np.searchsorted(image_ids, image_id)
    first = np.flatnonzero((np.diff(category, prepend=-1) != 0) | (np.diff(image, prepend=-1) != 0))
    rank = np.arange(len(image)) - np.repeat(first, np.diff(first, append=len(image)))
    order = np.lexsort((-score, category))
    category, image, rank = category[order], image[order], rank[order]
    places = [
        np.searchsorted(ids, [truth[key] for truth in document["annotations"]])
        for ids, key in ((category_ids, "category_id"), (image_ids, "image_id"))
    ]
    return {
        area: Matches(category, image, rank, outcome[order], *(place[wanted[area]] for place in places))
        for area, outcome in outcomes.items()
    }


def _is_proven() -> bool:
    try:
        return importlib.metadata.version(FAST) == PROVEN
    except importlib.metadata.PackageNotFoundError:
        return False


def _by_ultrafast(kind: str, document: Record, predictions: Predictions, sigmas: list[float] | None) -> Found:
    from ultrafast_pycocotools.coco import COCO
    from ultrafast_pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(document)
        evaluation = COCOeval(truth, truth.loadRes(predictions), kind, kpt_oks_sigmas=sigmas)
        evaluation.evaluate()
    params = evaluation.params
    columns = [evaluation._engine.outcomes(index, params.maxDets[-1]) for index in range(len(areas(kind)))]
    category_id = np.array(params.catIds, np.int64)[columns[0]["cat_slot"]]
    outcomes = {area: column["outcome"] for area, column in zip(areas(kind), columns, strict=True)}
    return category_id, columns[0]["image_id"], columns[0]["score"], outcomes


def _by_pycocotools(kind: str, document: Record, predictions: Predictions, sigmas: list[float] | None) -> Found:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise Unavailable(
            "evaluating detections needs pycocotools; install it with: pip install 'ringbench[detection]'"
        ) from None
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = document
        truth.createIndex()
        if len(predictions):
            found = truth.loadRes(predictions)
        else:  # which loadRes cannot read
            found = COCO()
            found.dataset = {**document, "annotations": []}
            found.createIndex()
        evaluation = COCOeval(truth, found, kind)
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
    params = evaluation.params
    pairs = iter(evaluation.evalImgs)  # by category, range of areas and image
    detections: list[tuple[int, int, float]] = []
    outcomes: dict[str, list[np.ndarray]] = {area: [np.empty((0, len(THRESHOLDS)), np.uint8)] for area in areas(kind)}
    for category in params.catIds:
        for area in areas(kind):
            for image in params.imgIds:
                if (pair := next(pairs)) is None:
                    continue
                if area == "all":
                    detections += [(category, image, score) for score in pair["dtScores"]]
                outcome = np.where(pair["dtIgnore"], IGNORED, np.where(pair["dtMatches"], TRUE, FALSE))
                outcomes[area].append(outcome.T.astype(np.uint8))
    category_id, image_id, score = (
        (np.array(column) for column in zip(*detections, strict=True)) if detections else [np.empty(0)] * 3
    )
    return category_id, image_id, score, {area: np.concatenate(parts) for area, parts in outcomes.items()}


def _wanted(kind: str, truths: list[Record]) -> dict[str, np.ndarray]:
    """Which objects have to be found: crowds, other areas and persons without keypoints neither help nor harm."""
    area = np.array([truth["area"] for truth in truths], float)
    ignored = np.array([truth["iscrowd"] or (kind == "keypoints" and not truth["num_keypoints"]) for truth in truths], bool)
    return {name: ~ignored & (smallest <= area) & (area <= largest) for name, (smallest, largest) in areas(kind).items()}
