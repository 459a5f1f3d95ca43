"""What a run will cost, told without running it."""

from pathlib import Path

import numpy as np
import torch

from backbones import loading
from backbones.device import resolve_dtype
from backbones.trunk import build
from bench.plan import Cell, Options
from imagesets import image_set as imagesets
from imagesets import pipeline as pipelines
from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from imagesets.statistics import cached_statistics
from ringbench import places
from transfer.features import is_cached


def cost(cells: list[Cell], options: Options) -> str:
    """What cells of one group that are to be run will take, in words: images through the trunk, and disk for their features.

    Nothing is computed: weights are read, images counted, and statistics looked up only where they are cached.
    """
    first = cells[0]
    images = imagesets.load(first.imageset, options.data)
    images.require_measurable()
    pipeline = pipelines.parse(first.backbone.pipeline).with_geometry(first.imageset.geometry)
    if pipeline.needs_statistics and (known := cached_statistics(images, on_bad=options.on_bad_image)):
        pipeline = pipeline.resolve(*known)
    levels, halves = sorted({cell.protocol.level for cell in cells}), (images.trainval, images.splits["test"])
    backbone, dtype = loading.load(first.backbone, seed=first.seed), resolve_dtype(options.dtype)
    sha256 = backbone.certificate["trunk_sha256"]
    absent = [
        level
        for level in levels
        if options.force or not all(is_cached(sha256, pipeline, images, half, level, dtype, feature_cache()) for half in halves)
    ]
    if not absent:
        return "features cached"
    height, width = pipeline.size or pipeline.prepare(first_readable(images, options.on_bad_image)).shape[:2]
    with torch.device("meta"):
        shapes = build(first.backbone.arch, first.backbone.stem).eval()(torch.empty(1, 3, height, width))["res5"].shape[1:]
    numbers = {"prepool": shapes.numel(), "res5": shapes.numel(), "pooled": shapes[0]}
    n = sum(map(len, halves))
    size = sum(n * numbers.get(level, 4 * shapes.numel()) * dtype.itemsize for level in absent)
    return f"{n:,} images of {height} x {width} px through the trunk, about {size / 1e9:.2f} GB of features"


def feature_cache() -> Path:
    return places.cache() / "features"


def first_readable(images: ImageSet, on_bad_image: str) -> np.ndarray:
    """The first training image. Raises BadImage if it cannot be read, or with "skip" if none can."""
    for index in images.trainval:
        try:
            return images.read(int(index))
        except BadImage:
            if on_bad_image == "stop":
                raise
    raise BadImage(f"image set '{images.spec.name}' has no training image that can be read")
