"""Mean and standard deviation of each colour channel over a set's training images: exact, once, cached."""

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Literal

import joblib
import numpy as np
from PIL import Image

from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from ringbench import files, places
from ringbench.errors import RingbenchError

Triple = tuple[float, float, float]
CHUNK = 64  # images a thread takes at a time


def channel_statistics(
    image_set: ImageSet,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    on_bad: Literal["stop", "skip"] = "stop",
) -> tuple[Triple, Triple]:
    """(mean, std) of R, G, B in 0..1 over every pixel of train and val, at the images' own sizes; std is the population's.

    Counted as integers per channel and level, so the result depends on no order and no rounding until its last step.
    `progress(done, total)` counts images. Cached below `cache_dir` (default: places.cache()) by fingerprint and split hash.
    Raises BadImage for the first bad image, or leaves bad images out where `on_bad` is "skip".
    """
    path = _path(image_set, cache_dir)
    if cached := cached_statistics(image_set, cache_dir, on_bad=on_bad):
        return cached
    counts, skipped = _count(image_set, progress, on_bad)
    mean, std = zip(*map(_moments, counts), strict=True)
    files.write_json(path, {"imageset": image_set.spec.name, "mean": mean, "std": std, "skipped": skipped})
    return mean, std


def cached_statistics(
    image_set: ImageSet, cache_dir: Path | None = None, *, on_bad: Literal["stop", "skip"] = "stop"
) -> tuple[Triple, Triple] | None:
    """What `channel_statistics` would find in the cache."""
    try:
        cached = json.loads(_path(image_set, cache_dir).read_text())
        if on_bad == "skip" or not cached["skipped"]:
            return tuple(cached["mean"]), tuple(cached["std"])
    except (OSError, ValueError, LookupError):  # nothing there, or nothing that can be used: counted anew
        pass
    return None


def _path(image_set: ImageSet, cache_dir: Path | None) -> Path:
    key = files.digest([image_set.local_state, image_set.split_hash])
    return (cache_dir or places.cache()) / "statistics" / f"{key}.json"


def _count(image_set: ImageSet, progress: Callable[[int, int], None] | None, on_bad: str) -> tuple[np.ndarray, list[str]]:
    """Pixels of each channel and level, int64 (3, 256), and the keys of the images left out."""
    indices = image_set.trainval.tolist()
    counts, skipped, done = np.zeros((3, 256), np.int64), [], 0

    def count(chunk: list[int]) -> tuple[np.ndarray, list[str]]:
        part, bad = np.zeros(768, np.int64), []
        for i in chunk:
            try:
                part += Image.fromarray(image_set.read(i)).histogram()
            except BadImage:
                if on_bad == "stop":
                    raise
                bad.append(image_set.keys[i])
        return part.reshape(3, 256), bad

    chunks = [indices[start : start + CHUNK] for start in range(0, len(indices), CHUNK)]
    with ThreadPoolExecutor(joblib.cpu_count()) as threads:  # decoding releases the interpreter lock
        for chunk, (part, bad) in zip(chunks, threads.map(count, chunks), strict=True):
            counts += part
            skipped += bad
            done += len(chunk)
            if progress:
                progress(done, len(indices))
    if not counts.any():
        raise RingbenchError(f"image set '{image_set.spec.name}' has no training image that can be read")
    return counts, skipped


def _moments(counts: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the levels 0..255, divided by 255, from how often each occurs; in exact arithmetic."""
    levels = list(enumerate(counts.tolist()))
    n = sum(count for _, count in levels)
    mean = Fraction(sum(level * count for level, count in levels), 255 * n)
    square = Fraction(sum(level * level * count for level, count in levels), 255 * 255 * n)
    return float(mean), math.sqrt(square - mean * mean)
