"""What must hold before a detector is trained: pixels and features are the encoder's, and its batch norms know their inputs."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from backbones.trunk import FrozenBackbone, Trunk, TwoStream
from imagesets.annotated import AnnotatedSplit
from imagesets.decode import decode
from imagesets.pipeline import Pipeline
from ringbench.errors import RingbenchError
from transfer.detection import mapper
from transfer.detection import model as detectors
from transfer.detection.settings import detector_inputs

PARITY = 1e-4  # of the largest feature of a level
PATCH = 128  # pixels: a multiple of every stride, so that nothing is padded
CALIBRATION = 32  # images


def check_pixels(model: nn.Module, pipeline: Pipeline) -> None:
    """Raises RingbenchError unless colours, mean and std of the detector are the encoder's (CASES C13)."""
    expected = detector_inputs(pipeline)
    found = {
        "INPUT.FORMAT": model.input_format,
        "MODEL.PIXEL_MEAN": [round(x, 4) for x in model.pixel_mean.flatten().tolist()],
        "MODEL.PIXEL_STD": [round(x, 4) for x in model.pixel_std.flatten().tolist()],
    }
    for key, value in expected.items():
        value = value if isinstance(value, str) else [round(x, 4) for x in torch.tensor(value).tolist()]
        if found[key] != value:
            raise RingbenchError(f"the detector has {key} {found[key]}, the encoder needs {value} ({pipeline})")


@torch.no_grad()
def check_parity(model: nn.Module, backbone: FrozenBackbone, trunk: Trunk | TwoStream, pipeline: Pipeline, file: str) -> dict:
    """The largest difference of res2 .. res5 between the detector, reading `file` its own way, and torch's `trunk` behind the
    encoder's pipeline, relative to the largest feature. Raises RingbenchError above PARITY (CASES E3)."""
    device, training = model.device, model.training
    image = _patch(mapper.read(file, model.input_format))
    pixels = torch.from_numpy(_patch(pipeline.prepare(decode(file)))).permute(2, 0, 1)[None]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # whose rounding alone is larger than PARITY
        tensors = model.eval().preprocess_image([{"image": torch.from_numpy(image).permute(2, 0, 1)}]).tensor
        bottom, head = detectors.bottom(model), detectors.head(model)
        found = bottom.body(tensors, 4)
        found["res5"] = head(found["res4"])
        model.train(training)
        expected = copy.deepcopy(trunk).eval().to(device)(backbone.prepare(pixels).to(device))
    differences = {}
    for level, value in expected.items():
        differences[level] = ((found[level] - value).abs().max() / value.abs().max().clamp_min(1e-12)).item()
        if not differences[level] < PARITY:  # nor NaN
            raise RingbenchError(f"{level} of the detector differs from the encoder's by {differences[level]:.1e} on {file}")
    return differences


def calibrated(backbone: FrozenBackbone, pipeline: Pipeline, split: AnnotatedSplit) -> Trunk | TwoStream:
    """A copy of a random trunk whose batch norms hold the statistics of some training images. Without, its features grow from
    layer to layer until a pyramid on them diverges."""
    trunk = copy.deepcopy(backbone.trunk).to(backbone.device).train()
    norms = [module for module in trunk.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the images
    with torch.no_grad():
        for image in _spread(split, pipeline):
            trunk(backbone.prepare(image))
    for norm in norms:
        norm.momentum = 0.1
    return trunk.eval()


def _spread(split: AnnotatedSplit, pipeline: Pipeline) -> Iterator[Tensor]:
    images = split.images[:: max(1, len(split.images) // CALIBRATION)][:CALIBRATION]
    for image in images:
        yield torch.from_numpy(_patch(pipeline.prepare(decode(image["file_name"])), 2 * PATCH)).permute(2, 0, 1)[None]


def _patch(image: np.ndarray, edge: int = PATCH) -> np.ndarray:
    """The upper left corner of an image, edge x edge x 3, repeated where it is smaller."""
    repeats = (-(-edge // image.shape[0]), -(-edge // image.shape[1]), 1)
    return np.ascontiguousarray(np.tile(image, repeats)[:edge, :edge])
