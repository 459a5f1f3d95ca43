"""Top-1, top-5 and mean-per-class accuracy with bootstrap intervals."""

import numpy as np

from ringbench.errors import RingbenchError, UsageError


def evaluate(
    scores: np.ndarray,
    y: np.ndarray,
    n_classes: int,
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> dict[str, dict[str, float]]:
    """`top1`, `top5` (for more than five classes) and `mean_per_class`: value, ci_low and ci_high in percent, n images.

    scores (n, C), larger is better; a score that another class equals counts as the lower of the two, so that a classifier gains
    nothing by not deciding. y (n,) in 0..C-1. Classes without images do not enter the mean per class.

    The interval is the 95% percentile bootstrap over images, or over whole groups where `groups` (n,) says which images belong
    together (frames of a track) and are not independent.

    Raises RingbenchError for NaN among the scores, UsageError for arrays that do not belong together.
    """
    _check(scores, y, n_classes)
    if groups is not None and len(groups) != len(y):
        raise UsageError(f"found {len(groups)} group labels for {len(y)} images, expected one each")
    # Every metric follows from how many images of each class rank first, second to fifth, or below.
    cell = y * 3 + np.searchsorted([1, 5], _rank(scores, y), side="right")
    counts = np.bincount(cell, minlength=3 * n_classes)
    rng = np.random.default_rng(seed)
    if groups is None:
        drawn = rng.multinomial(len(y), counts / len(y), size=resamples)  # n images with replacement, counted by cell
    else:
        names, group = np.unique(groups, return_inverse=True)
        draws = (np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names)) for _ in range(resamples))
        drawn = np.stack([np.bincount(cell, weights=draw[group], minlength=3 * n_classes) for draw in draws])
    values, samples = _accuracies(counts[None]), _accuracies(drawn)
    if n_classes <= 5:
        del values["top5"]
    result = {}
    for metric, (value,) in values.items():
        low, high = np.percentile(samples[metric], [2.5, 97.5])
        result[metric] = {"value": float(value), "ci_low": float(low), "ci_high": float(high), "n": len(y)}
    return result


def _rank(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many other classes (n,) have at least the score of the right one."""
    return (scores >= np.take_along_axis(scores, y[:, None], 1)).sum(1) - 1


def _accuracies(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Percentages (R,) from counts (R, 3 C)."""
    counts = counts.reshape(len(counts), -1, 3)
    images = counts.sum(2)
    present = images > 0
    recall = counts[:, :, 0] / np.where(present, images, 1)
    return {
        "top1": 100 * counts[:, :, 0].sum(1) / images.sum(1),
        "top5": 100 * counts[:, :, :2].sum((1, 2)) / images.sum(1),
        "mean_per_class": 100 * recall.sum(1) / present.sum(1),
    }


def _check(scores: np.ndarray, y: np.ndarray, n_classes: int) -> None:
    if not len(y) or scores.shape != (len(y), n_classes):
        raise UsageError(
            f"found scores {scores.shape} for {len(y)} images, expected ({len(y)}, {n_classes}) and at least one image"
        )
    if y.min() < 0 or y.max() >= n_classes:
        raise UsageError(f"found labels {y.min()}..{y.max()}, expected 0..{n_classes - 1}")
    bad = np.isnan(scores).any(1).sum()
    if bad:
        raise RingbenchError(f"the scores of {bad} of {len(y)} images hold NaN, so no accuracy is defined; look at the features")
