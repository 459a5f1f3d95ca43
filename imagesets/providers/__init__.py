"""Where image sets come from: one file per provider, found by its name. To add one, add its file and its line here.

A provider module has
  missing(spec, root) -> str | None   one sentence why the set cannot be used and where its files go; cheap, without torch
  load(spec, root) -> Source          images with a label each; called where `missing` found nothing
  boxes(spec, root) -> Boxes          images with boxes; a module has one of the two, or both
  download(spec, root)                optional: fetch the files
"""

import importlib
from pathlib import Path
from types import ModuleType

from imagesets.spec import ImagesetSpec
from ringbench.errors import UsageError

PROVIDERS = {
    "coco": "imagesets.providers.coco",
    "embedded": "imagesets.providers.embedded",
    "folder": "imagesets.providers.folder",
    "manifest": "imagesets.providers.manifest",
    "shapes": "imagesets.providers.shapes",
    "torchvision": "imagesets.providers.torchvision",
    "voc": "imagesets.providers.voc",
}


def find(name: str) -> ModuleType:
    """The module of a provider. Raises UsageError for an unknown name."""
    if name not in PROVIDERS:
        raise UsageError(f"unknown provider '{name}' of image sets; providers are {', '.join(PROVIDERS)}")
    return importlib.import_module(PROVIDERS[name])


def root_of(spec: ImagesetSpec, data_dir: Path) -> Path:
    """The folder of a set's files: `spec.root`, or the set's name, below the data folder; an absolute root stays as it is."""
    return Path(data_dir) / Path(spec.root or spec.name).expanduser()


def missing(spec: ImagesetSpec, data_dir: Path) -> str | None:
    """One sentence why a set cannot be used and where its files go, or None. Imports neither torch nor numpy."""
    return find(spec.provider).missing(spec, root_of(spec, data_dir))
