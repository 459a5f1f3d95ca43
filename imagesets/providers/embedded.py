"""Real images that come with a package: nothing to download. `digits` is scikit-learn's 1,797 handwritten digits, 8 x 8."""

from __future__ import annotations

from pathlib import Path

from imagesets.providers.source import Source
from imagesets.spec import ImagesetSpec
from ringbench.errors import UsageError


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    if spec.dataset != "digits":
        raise UsageError(f"image set '{spec.name}': the embedded provider has the dataset 'digits', not '{spec.dataset}'")
    return None


def load(spec: ImagesetSpec, root: Path) -> Source:
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    levels = digits.images.astype(np.uint16)  # 0..16
    return Source(
        classes=[str(name) for name in digits.target_names],
        keys=[f"{i:05d}" for i in range(len(levels))],
        labels=digits.target,
        images=((levels * 255 + 8) // 16).astype(np.uint8),
    )
