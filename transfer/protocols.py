"""A protocol applied: features and labels in, scores on the test split out."""

from collections.abc import Callable

import numpy as np

from imagesets.image_set import ImageSet
from ringbench.errors import RingbenchError
from transfer import metrics, probes
from transfer.features import Features
from transfer.spec import ProtocolSpec


def measure(
    protocol: ProtocolSpec,
    image_set: ImageSet,
    trainval: Features,
    test: Features,
    *,
    seed: int,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> dict:
    """Fit the protocol's probe on train (and val) features, score the test features.

    Returns {"metrics": {name: {value, ci_low, ci_high, n}}, "interval", "chance": {name: percent}, "n": {split: images}, and the
    probe's report: what was selected, on which split, from which grid, whether it converged}. Test images are seen once, at the
    end. Where images come in groups (frames of a track) these are what the bootstrap draws.
    """
    probe = probes.make(protocol.probe, protocol.settings, seed=seed, device=device, progress=progress)
    labels, n_classes = image_set.labels, len(image_set.classes)
    X, y = _rows(trainval.array), labels[trainval.indices]
    X_test, y_test = _rows(test.array), labels[test.indices]
    validating = np.isin(trainval.indices, image_set.splits["val"])
    n = {"train": int((~validating).sum()), "val": int(validating.sum()), "test": len(y_test)}
    for split, uses in {"train": "learns from", "val": "chooses its settings on", "test": "is measured on"}.items():
        if not n[split] and (split != "val" or probe.needs_validation):
            raise RingbenchError(
                f"image set '{image_set.spec.name}' has no {split} image, which {protocol.name} {uses}; add some"
            )
    if probe.needs_validation:
        probe.fit(X[~validating], y[~validating], X[validating], y[validating], n_classes=n_classes)
    else:
        probe.fit(X, y, n_classes=n_classes)
    groups = None if image_set.groups is None else image_set.groups[test.indices]
    return {
        "metrics": metrics.evaluate(probe.scores(X_test), y_test, n_classes, groups=groups, seed=seed),
        "interval": f"95% bootstrap over {'images' if groups is None else 'groups of images'}",
        "chance": _chance(y_test, n_classes),
        "n": n,
        **probe.report,
    }


def _rows(array: np.ndarray) -> np.ndarray:
    """(n, C, H, W) feature maps as (n, C*H*W) rows, still memory-mapped: torch's and numpy's flatten order."""
    return array.reshape(len(array), -1)


def _chance(y: np.ndarray, n_classes: int) -> dict[str, float]:
    """What a score no better than guessing can reach: always naming the most frequent classes of the test split."""
    shares = np.sort(np.bincount(y, minlength=n_classes))[::-1] / len(y)
    return {
        "top1": 100.0 * float(shares[0]),
        "top5": 100.0 * float(shares[:5].sum()),
        "mean_per_class": 100.0 / int((shares > 0).sum()),
    }
