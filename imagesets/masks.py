"""COCO's two spellings of a mask, read without pycocotools: polygons, and run lengths down the columns (RLE)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Longer edges of the image that a corner may be away: further than any object reaches, and near enough for pycocotools, which
# takes memory for every fifth of a pixel along a polygon's edge and counts them in 32 bits.
REACH = 10


def is_broken(segmentation: Any, height: int, width: int) -> bool:
    """Whether it is neither polygons of at least three corners in reach of the image nor run lengths that fill height x width."""
    try:
        if isinstance(segmentation, dict):
            size, runs = segmentation["size"], _runs(segmentation["counts"])
            whole = set(map(type, [*size, *runs])) == {int}
            return not whole or list(size) != [height, width] or min(runs) < 0 or sum(runs) != height * width
        return not all(_is_polygon(polygon, REACH * max(height, width)) for polygon in segmentation)
    except (KeyError, TypeError, ValueError, IndexError):
        return True


def _is_polygon(polygon: list[float], reach: float) -> bool:
    numbers = len(polygon) >= 6 and len(polygon) % 2 == 0 and set(map(type, polygon)) <= {int, float}
    return numbers and -reach <= min(polygon) and max(polygon) <= reach and not math.isnan(sum(polygon))


def pixels(segmentation: Any, height: int, width: int) -> np.ndarray:
    """bool (height, width) of a segmentation that is not broken. The edges of polygons are Pillow's, good enough to look at."""
    import numpy as np
    from PIL import Image, ImageDraw

    if isinstance(segmentation, dict):
        runs = _runs(segmentation["counts"])
        return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    image = Image.new("1", (width, height))
    for polygon in segmentation:
        ImageDraw.Draw(image).polygon(polygon, fill=1)
    return np.asarray(image)


def _runs(counts: list[int] | str | bytes) -> list[int]:
    """Lengths of the runs of 0 and 1 in turn, beginning with 0.

    Compressed, a number is groups of five bits, lowest first, as characters from "0" on; bit 5 says that more follow, bit 4 of
    the last is the sign. From the fourth number on it is the difference from the run two before.
    """
    if isinstance(counts, list):
        return counts
    runs: list[int] = []
    value = shift = 0
    for code in counts.encode("ascii") if isinstance(counts, str) else counts:
        group = code - 48
        if not 0 <= group < 64 or shift > 30:
            raise ValueError("not a character of compressed run lengths of 32 bits")
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            runs.append(value + runs[-2] if len(runs) > 2 else value)
            value = shift = 0
    if shift:
        raise ValueError("compressed run lengths end in the middle of a number")
    return runs
