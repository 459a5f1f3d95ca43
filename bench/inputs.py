"""An encoder fitted to the images of a set, and whether they reach it as in training: the batch norms say (backbones.drift)."""

import numpy as np
import torch
from torch import Tensor

from backbones.drift import Drift, drift
from backbones.trunk import FrozenBackbone
from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from imagesets.statistics import channel_statistics
from ringbench import progress
from ringbench.clock import Clock
from ringbench.errors import RingbenchError

DRIFT_IMAGES = 64


def fit(
    backbone: FrozenBackbone, pipeline: Pipeline, images: ImageSet, clock: Clock, *, on_bad: str
) -> tuple[FrozenBackbone, Pipeline]:
    """Fill in what the pipeline takes from the image set, and what the backbone does itself of it."""
    if pipeline.needs_statistics:
        with clock("statistics"), progress.bar(f"{images.spec.name} statistics") as update:
            pipeline = pipeline.resolve(*channel_statistics(images, progress=update, on_bad=on_bad))
    return backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std), pipeline


def warnings(backbone: FrozenBackbone, pipeline: Pipeline, images: ImageSet, clock: Clock) -> list[str]:
    """What the drift of a sample tells, if anything; random weights, whose batch norms remember nothing, are not asked."""
    if backbone.certificate["source"] == "random":
        return []
    with clock("drift"):
        found, _ = measure(backbone, pipeline, images, DRIFT_IMAGES)
    return [found.warning] if found.warning else []


def sample(images: ImageSet, pipeline: Pipeline, count: int) -> Tensor:
    """About `count` training images spread over the set, as the pipeline prepares them: uint8 (N, 3, H, W).

    Only those of the size of the first one; unreadable ones are left to whoever reads them all. Raises RingbenchError if none
    is left.
    """
    prepared: list[np.ndarray] = []
    for index in images.trainval[:: max(1, len(images.trainval) // count)][:count]:
        try:
            image = pipeline.prepare(images.read(int(index)))
        except BadImage:
            continue
        if not prepared or image.shape == prepared[0].shape:
            prepared.append(image)
    if not prepared:
        raise RingbenchError(f"image set '{images.spec.name}' has no readable image among {count} of its training images")
    return torch.from_numpy(np.stack(prepared)).permute(0, 3, 1, 2).contiguous()


def measure(backbone: FrozenBackbone, pipeline: Pipeline, images: ImageSet, count: int) -> tuple[Drift, Tensor]:
    """The drift of a sample of the set, and the sample. `backbone` has the tensor steps of `pipeline`."""
    pixels = sample(images, pipeline, count)
    return drift(backbone, pixels), pixels
