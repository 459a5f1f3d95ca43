"""Do images reach a network as in training? Some of a set go through the pipeline, and the batch norms say (backbones.drift)."""

import numpy as np
import torch
from torch import Tensor

from backbones.drift import Drift, drift
from backbones.trunk import FrozenBackbone
from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from ringbench.errors import RingbenchError


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
