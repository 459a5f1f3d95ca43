"""COCO's and Pascal VOC's numbers of a detector, with intervals from resampling the test images."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from imagesets.annotated import AnnotatedSplit, Keypoints
from transfer.detection import voc
from transfer.detection.matching import match
from transfer.detection.precision import curves
from transfer.detection.predictions import KINDS, document, results

__all__ = ["KINDS", "Scores", "evaluate", "paired"]

COCO_GRID = np.linspace(0, 1, 101)  # recalls at which precision is averaged; the same floats as in COCO's own code
VOC_GRID = np.arange(11) / 10  # the nearest floats: 3 of 10 objects found reach a recall of 0.3
IOU50, IOU75 = 0, 5  # positions among the thresholds
PERCENTILES = 2.5, 97.5
Record = dict[str, Any]
Style = Literal["coco", "voc"]

# COCO's summary: name -> (precision or the detections that count for recall, threshold, range of areas).
_EVERY = slice(None)
BOXES = {
    "AP": ("precision", _EVERY, "all"),
    "AP50": ("precision", IOU50, "all"),
    "AP75": ("precision", IOU75, "all"),
    "APs": ("precision", _EVERY, "small"),
    "APm": ("precision", _EVERY, "medium"),
    "APl": ("precision", _EVERY, "large"),
    "AR1": (1, _EVERY, "all"),
    "AR10": (10, _EVERY, "all"),
    "AR100": (100, _EVERY, "all"),
    "ARs": (100, _EVERY, "small"),
    "ARm": (100, _EVERY, "medium"),
    "ARl": (100, _EVERY, "large"),
}
KEYPOINTS = {
    "AP": ("precision", _EVERY, "all"),
    "AP50": ("precision", IOU50, "all"),
    "AP75": ("precision", IOU75, "all"),
    "APm": ("precision", _EVERY, "medium"),
    "APl": ("precision", _EVERY, "large"),
    "AR": (20, _EVERY, "all"),
    "AR50": (20, IOU50, "all"),
    "AR75": (20, IOU75, "all"),
    "ARm": (20, _EVERY, "medium"),
    "ARl": (20, _EVERY, "large"),
}
SUMMARY = {"bbox": BOXES, "segm": BOXES, "keypoints": KEYPOINTS}
VOC = {"AP_voc07": _EVERY, "AP50_voc07": IOU50, "AP75_voc07": IOU75}


@dataclass(frozen=True)
class Scores:
    """metrics: name -> value, ci_low and ci_high in percent, n images; what has no object to be measured on is left out.

    per_class: class -> AP (of VOC: AP50_voc07) in percent, of the classes that have an object.
    """

    metrics: dict[str, dict[str, float]]
    per_class: dict[str, float]


def evaluate(
    split: AnnotatedSplit,
    categories: list[Record],
    predictions: list[Record],
    kind: str,
    *,
    style: Style = "coco",
    keypoints: Keypoints | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Scores:
    """COCO's twelve numbers for boxes (`bbox`) and masks (`segm`), its ten for keypoints; in VOC's style its own too.

    categories: id and name of those that count. predictions: COCO results, with `image_id`, `category_id` as in `categories`,
    `score`, and the `bbox` (x, y, width, height), `segmentation` (RLE) or `keypoints` that `kind` asks for. The areas of
    predicted keypoints are those of their extent, as in the results that COCO's server takes.

    VOC's difficult objects count as crowd in COCO's numbers, and are ignored by VOC's rule in its own: AP50_voc07 is the
    11-point mAP of the VOC2007 devkit, AP_voc07 and AP75_voc07 the same at COCO's thresholds, as Detectron2 reports them.

    Intervals are the 95% bootstrap over images, its percentiles moved by the bootstrap's own bias: of 100 simulated test sets of
    60 images the plain percentiles held the expected AP in 82, these in 98.

    Raises RingbenchError for predictions that do not belong to the split or are not finite, and for masks or keypoints that
    the split does not have; Unavailable where no evaluator is installed.
    """
    samples, classes = _samples(split, categories, predictions, kind, style, keypoints, _weights(split, resamples, seed))
    n = len(split.images)
    metrics = {name: _interval(row[0], row[1:], n, least=0.0) for name, row in samples.items() if np.isfinite(row[0])}
    return Scores(metrics, classes)


def paired(
    split: AnnotatedSplit,
    categories: list[Record],
    predictions_a: list[Record],
    predictions_b: list[Record],
    kind: str,
    *,
    style: Style = "coco",
    keypoints: Keypoints | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Of each metric b minus a in percentage points, with the 95% interval over the same resamples of images for both."""
    weights = _weights(split, resamples, seed)
    a, b = (
        _samples(split, categories, predictions, kind, style, keypoints, weights)[0]
        for predictions in (predictions_a, predictions_b)
    )
    n = len(split.images)
    differences = {name: b[name] - a[name] for name in a}
    return {name: _interval(row[0], row[1:], n, least=-100.0) for name, row in differences.items() if np.isfinite(row[0])}


def _weights(split: AnnotatedSplit, resamples: int, seed: int) -> np.ndarray:
    """(I, 1 + R): every image once, then how often each is drawn."""
    n = len(split.images)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return np.concatenate([np.ones((1, n), drawn.dtype), drawn]).T


def _interval(value: float, samples: np.ndarray, n: int, least: float) -> dict[str, float]:
    """The percentiles, moved so that the mean of the samples comes to lie on the value; from `least` to 100.

    Resamples flatter AP: they hold fewer different images, and interpolated precision is the largest of fewer, noisier ones.
    """
    samples = samples[np.isfinite(samples)]  # a resample may miss every object of a kind
    low, high = np.percentile(samples, PERCENTILES) + value - samples.mean() if len(samples) else (value, value)
    return {"value": float(value), "ci_low": max(float(low), least), "ci_high": min(float(high), 100.0), "n": n}


def _samples(
    split: AnnotatedSplit,
    categories: list[Record],
    predictions: list[Record],
    kind: str,
    style: Style,
    keypoints: Keypoints | None,
    weights: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Each metric in percent for each column of weights, and the value of each class for the first."""
    truth = document(split, categories, kind, keypoints)
    found = results(truth, predictions, kind, keypoints)
    names = {category["id"]: category["name"] for category in categories}
    by_area = {}
    own = voc.match(truth, found) if style == "voc" and kind == "bbox" else None
    for area, matches in match(kind, truth, found, list(keypoints.sigmas) if keypoints else None).items():
        cuts = sorted({cut for cut, _, of in SUMMARY[kind].values() if of == area and cut != "precision"})
        by_area[area] = curves(matches, weights, len(names), grid=COCO_GRID, cuts=cuts)
    samples = {
        name: _mean((by_area[area].precision if what == "precision" else by_area[area].recall[what])[at])
        for name, (what, at, area) in SUMMARY[kind].items()
    }
    per_class = by_area["all"].precision[:, :, 0].mean(0)
    if own is not None:
        precision = curves(own, weights, len(names), grid=VOC_GRID, cuts=[]).precision
        samples |= {name: _mean(precision[at]) for name, at in VOC.items()}
        per_class = precision[IOU50, :, 0]
    shown = {names[key]: 100 * float(value) for key, value in zip(sorted(names), per_class, strict=True)}
    return samples, {name: value for name, value in shown.items() if np.isfinite(value)}


def _mean(values: np.ndarray) -> np.ndarray:
    """([T,] K, R) -> percent (R,), over thresholds and the categories that have an object; NaN where none has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of means of nothing
        return 100 * np.nanmean(values.reshape(-1, values.shape[-1]), 0)
