"""The layouts checkpoints come in: one file each, found by name. Adding one is a file here and its name in FORMATS.

The trunk is found by its names and shapes wherever it is (backbones.resolving); a format says only what those do not tell.
"""

import importlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from ringbench.errors import UsageError

FORMATS = (
    "torchvision",
    "timm",
    "moco",
    "moco_v3",
    "simclr",
    "cmc",
    "cmc_ydbdr",
    "pycontrast",
    "lemniscate",
    "local_aggregation",
    "byol",
    "byol_haiku",
    "barlow",
    "vicreg",
    "dino",
    "simsiam",
    "vissl",
    "lightly",
    "solo_learn",
    "swav",
    "openmmlab",
    "contrastive_ring",
    "detectron2",
    "caffe2",
)

IMAGENET = "rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(imagenet)"
UNIT = "rgb|resize(256,bilinear)|center_crop(224)|scale01"  # pixels in 0..1, not normalised


@dataclass(frozen=True, kw_only=True)
class Format:
    """`pipeline`    the preprocessing its authors evaluate with
    `recognised`  each string holds words, separated by spaces, that only files of this format have all together in their
                  names; where several formats fit, the one with most words counts
    `preferred`   pieces of a dotted name, best first: the trunk its authors evaluate, where a file holds several
    `large`, `small`, `streams`   the stem of a file with a 7x7, a 3x3 first convolution, with two streams (backbones.stems)
    `rename`      from all names in a file to those that change and what they are in torchvision's words
    `reshape`     from torchvision's name and a tensor to the tensor in torchvision's memory order
    """

    pipeline: str = IMAGENET
    recognised: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    large: str = "imagenet"
    small: str = "cifar"
    streams: str = "lab"
    rename: Callable[[Collection[str]], dict[str, str]] | None = None
    reshape: Callable[[str, Any], Any] | None = None


@cache
def get(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"unknown checkpoint format {name!r}; expected {', '.join(['auto', *FORMATS])}")
    return importlib.import_module(f"backbones.formats.{name}").FORMAT


def recognise(words: Collection[str]) -> str:
    """The format of a file in whose names these words occur; torchvision where nothing else fits."""
    fits = {"torchvision": 0}
    for name in FORMATS:
        for marks in map(str.split, get(name).recognised):
            if all(mark in words for mark in marks):
                fits[name] = max(fits.get(name, 0), len(marks))
    return max(fits, key=fits.__getitem__)


def default_pipeline(name: str) -> str:
    return get(name).pipeline


def substitute(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """`name` after each rule, a pattern and its replacement, in turn."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def hwio(name: str, tensor: Any) -> Any:
    """A TensorFlow or JAX tensor as torch lays it out: kernels (H, W, I, O) -> (O, I, H, W), batch norms to one dimension."""
    return tensor.flatten() if "bn" in name or "downsample.1" in name else tensor.permute(3, 2, 0, 1)
