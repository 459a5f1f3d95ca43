"""COCO's two spellings of a mask, checked without pycocotools: polygons, and run lengths down the columns (RLE)."""

from __future__ import annotations

import math
from typing import Any


def is_broken(segmentation: Any, height: int, width: int) -> bool:
    """Whether a segmentation is neither polygons of at least three corners nor run lengths that fill height x width."""
    try:
        if isinstance(segmentation, dict):
            counts = segmentation["counts"]
            runs = counts if isinstance(counts, list) else _decompressed(counts)
            return list(segmentation["size"]) != [height, width] or min(runs) < 0 or sum(runs) != height * width
        return not all(len(polygon) >= 6 and len(polygon) % 2 == 0 and math.isfinite(sum(polygon)) for polygon in segmentation)
    except (KeyError, TypeError, ValueError, IndexError):
        return True


def _decompressed(counts: str | bytes) -> list[int]:
    """Run lengths of COCO's compressed RLE: groups of five bits, lowest first, as characters from "0".

    Bit 5 says that more follow. From the fourth on, a run is written as its difference from the one two before.
    """
    runs: list[int] = []
    value = shift = 0
    for code in counts.encode("ascii") if isinstance(counts, str) else counts:
        group = code - 48
        if not 0 <= group < 64:
            raise ValueError("not a character of compressed run lengths")
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
