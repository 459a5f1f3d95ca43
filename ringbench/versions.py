"""The versions of what numbers rest on."""

import platform
from importlib import metadata

from ringbench import __version__

LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "pillow")


def versions(*libraries: str) -> dict[str, str]:
    """Of ringbench, Python, LIBRARIES and those of `libraries` that are installed."""
    found = {"ringbench": __version__, "python": platform.python_version()}
    return found | {name: number for name in (*LIBRARIES, *libraries) if (number := _version(name))}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # not there, or a checkout that is on the path
        return None
