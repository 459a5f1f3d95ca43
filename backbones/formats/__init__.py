"""The layouts checkpoints come in: one file each, found by name. Adding one is a file here and a line below.

A format module states `PIPELINE`, the preprocessing its authors evaluate with, and `trunk(tensors)`, which takes a flat
{name: tensor} and returns {torchvision name: tensor} for the tensors that belong to a ResNet trunk.
"""

import importlib
from types import ModuleType

from ringbench.errors import UsageError

FORMATS = {
    "torchvision": "backbones.formats.torchvision",
}


def get(name: str) -> ModuleType:
    if name not in FORMATS:
        raise UsageError(f"unknown checkpoint format {name!r}; expected {', '.join(['auto', *FORMATS])}")
    return importlib.import_module(FORMATS[name])


def default_pipeline(name: str) -> str:
    return get(name).PIPELINE
