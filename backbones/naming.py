"""A checkpoint as one flat table, and the ways in which the tensors of a ResNet are called.

In the flat table, containers, wrappers and prefixes are all the same: leading parts of a dotted place.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from backbones.reading import Stub
from backbones.stems import STREAMS

# What parallel, compiled and sharded modules put around a name, wherever and however often.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
STAGES = ("layer1", "layer2", "layer3", "layer4")


class Entry(NamedTuple):
    """One tensor of a checkpoint. `original` is where it is, in parts; the first `depth` of them are keys of containers around
    the one that holds it. `parts` is the same without wrappers."""

    tensor: Tensor
    original: tuple[str, ...]
    depth: int
    parts: tuple[str, ...]


def flatten(tree: Any) -> tuple[list[Entry], set[str]]:
    """Every tensor of a `reading.Document`'s tree, and every word that occurs in the names of its places."""
    words: set[str] = set()
    entries = []
    for tensor, original, depth in _leaves(tree, (), 0, words):
        entries.append(Entry(tensor, original, depth, tuple(part for part in original if part not in WRAPPERS)))
    return entries, words


def _leaves(node: Any, place: tuple[str, ...], depth: int, words: set[str]) -> Iterator[tuple[Tensor, tuple[str, ...], int]]:
    match node:
        case Tensor():
            yield node, place, depth
        case dict():
            for key, value in node.items():
                parts = tuple(str(key).split("."))
                words.update(parts)
                yield from _leaves(value, place + parts, len(place), words)
        case list() | tuple():
            for index, value in enumerate(node):
                yield from _leaves(value, (*place, f"[{index}]"), len(place), words)
        case Stub():
            for value in node.content.values():
                yield from _leaves(value, place, depth, words)


def _direct(parts: tuple[str, ...]) -> str | None:
    """torchvision's names; `shortcut` (kuangliu/pytorch-cifar and what comes from it) is what torchvision calls `downsample`."""
    if parts[0] in STREAMS and len(parts) > 1:
        name = _direct(parts[1:])
        return name and f"{parts[0]}.{name}"
    if parts[0] in STAGES and len(parts) > 2:
        return ".".join("downsample" if part == "shortcut" else part for part in parts)
    return ".".join(parts) if parts[0] in ("conv1", "bn1") and len(parts) > 1 else None


def _numbered(first: int) -> Callable[[tuple[str, ...]], str | None]:
    """The children of a torchvision ResNet in an nn.Sequential: numbers instead of names, the first stage being `first`."""
    names = {"0": "conv1", "1": "bn1"} | {str(first + i): stage for i, stage in enumerate(STAGES)}

    def name(parts: tuple[str, ...]) -> str | None:
        child = names.get(parts[0])
        if child is None or (len(parts) == 2) == (child in STAGES) or len(parts) < 2:
            return None
        return _direct((child, *parts[1:]))

    return name


SPELLINGS = {
    "names": _direct,
    "numbers": _numbered(4),  # conv1, bn1, relu, maxpool, stages
    "numbers without relu and pooling": _numbered(2),  # of lightly's own ResNet, whose forward calls them as functions
}
