"""Where in a checkpoint the trunk is and which one it is, told by names and shapes.

Every place in the file is cut at every dot into a prefix and a rest, and the rest is read in each spelling of a ResNet's names.
The tensors of one prefix and one spelling are a candidate. It is a trunk only if its names and shapes are exactly those of one
architecture: nothing missing, nothing left over. If there are two different trunks, the format knows which one its authors
evaluate, or the user says it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torchvision.models.resnet import BasicBlock, Bottleneck

from backbones import formats, strangers
from backbones.formats import Format
from backbones.naming import SPELLINGS, STAGES, Entry, flatten
from backbones.spec import Arch, Stem
from backbones.stems import STREAMS
from backbones.trunk import ARCHS, build
from ringbench.errors import RingbenchError

OPTIONAL = "num_batches_tracked"  # counts training steps; a frozen forward pass never reads it
SHOWN = 6  # places in a message
ATTENTION = 0.1  # a candidate that fills less of a trunk than this is a coincidence of names


@dataclass
class Candidate:
    """`place` is where its names begin, without wrappers; `fault` is what keeps it from being a trunk."""

    place: tuple[str, ...]
    entries: dict[str, Entry]  # by torchvision's names
    tensors: dict[str, Tensor] = field(default_factory=dict)
    arch: Arch | None = None
    stem: Stem = "imagenet"
    filled: float = 0.0
    fault: str | None = None


@dataclass(frozen=True)
class Resolution:
    """The trunk found: `tensors` has torchvision's names and shapes and the file's dtypes.

    `container` and `prefix` lead to it, wrappers included; `dropped` counts the other tensors of the file in groups;
    `reshaped` counts those that lay in another memory order, such as TensorFlow's HWIO kernels.
    """

    format: str
    arch: Arch
    stem: Stem
    tensors: dict[str, Tensor]
    container: str
    prefix: str
    dropped: dict[str, int]
    reshaped: int


def resolve(
    tree: Any,
    label: str,
    *,
    format: str = "auto",
    arch: Arch | None = None,
    stem: Stem | None = None,
    checkpoint_key: str | None = None,
) -> Resolution:
    """Find the trunk in the tree of a `reading.Document`; `label` names the file in messages. None for `arch` or `stem`: any.

    Raises RingbenchError unless there is exactly one whole trunk, or one that format or `checkpoint_key` tells from the others.
    """
    entries, words = flatten(tree)
    name = formats.recognise(words) if format == "auto" else format
    layout = formats.get(name)
    candidates = [_judge(each, layout, arch, stem) for each in _candidates(entries, layout)]
    if checkpoint_key:
        candidates = _under(candidates, checkpoint_key, label)
    whole = [each for each in candidates if each.fault is None]
    if not whole:
        raise RingbenchError(f"{label} {_why_none(entries, candidates, arch)}")
    chosen = _choose(whole, layout, name, label)
    return _resolution(chosen, entries, name)


def _candidates(entries: list[Entry], layout: Format) -> list[Candidate]:
    places = {".".join(entry.parts) for entry in entries}
    renamed = layout.rename(places) if layout.rename else {}
    groups: dict[tuple, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        place = ".".join(entry.parts)
        parts = tuple(renamed.get(place, place).split("."))
        for start in range(len(parts)):
            for spelling, read in SPELLINGS.items():
                if name := read(parts[start:]):
                    groups[parts[:start], spelling][name].append(entry)
    return [_candidate(place, named) for (place, _), named in groups.items() if _promising(named)]


def _promising(names: Any) -> bool:
    return any(name.endswith("layer4.0.conv1.weight") or name.endswith("layer1.0.conv1.weight") for name in names)


def _candidate(place: tuple[str, ...], named: dict[str, list[Entry]]) -> Candidate:
    candidate = Candidate(place, {name: found[0] for name, found in named.items()})
    twice = next((found for found in named.values() if len(found) > 1), None)
    if twice:
        first, second = (".".join(entry.original) for entry in twice[:2])
        candidate.fault = f"has two tensors for one place, {first} and {second}: save the one that is meant"
    return candidate


def _judge(candidate: Candidate, layout: Format, arch: Arch | None, stem: Stem | None) -> Candidate:
    """Fill in what the candidate is, and its first fault."""
    found = {name: entry.tensor for name, entry in candidate.entries.items()}
    if layout.reshape:
        found = {name: layout.reshape(name, tensor) for name, tensor in found.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items() if not name.endswith(OPTIONAL)}
    candidate.tensors = found
    candidate.arch = arch or _arch_of(shapes)
    if candidate.arch is None:
        candidate.fault = candidate.fault or "holds a ResNet of no known architecture"
        return candidate
    candidate.stem = stem or _stem_of(shapes, layout)
    wanted = _shapes(candidate.arch, candidate.stem)
    candidate.filled = sum(name in shapes for name in wanted) / len(wanted)
    candidate.fault = candidate.fault or _fault(wanted, shapes, candidate)
    return candidate


def _fault(wanted: dict[str, tuple], shapes: dict[str, tuple], candidate: Candidate) -> str | None:
    what = f"{candidate.arch} with {candidate.stem} stem"
    missing = [name for name in wanted if name not in shapes]
    surplus = [name for name in shapes if name not in wanted]
    wrong = [name for name in wanted if name in shapes and shapes[name] != wanted[name]]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        return f"fills {len(wanted) - len(missing)} of {len(wanted)} tensors of a {what}; missing {missing[0]}{more}"
    if surplus:
        return f"has {len(surplus)} trunk tensors that a {what} has not, first {surplus[0]}"
    if wrong:
        return f"has {wrong[0]} of shape {shapes[wrong[0]]}, a {what} needs {wanted[wrong[0]]}"
    return None


@cache
def _shapes(arch: Arch, stem: Stem) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        state = build(arch, stem).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if not name.endswith(OPTIONAL)}


def _arch_of(shapes: dict[str, tuple]) -> Arch | None:
    one = {name.removeprefix("l_to_ab."): shape for name, shape in shapes.items() if not name.startswith("ab_to_l.")}
    block = Bottleneck if any(".conv3." in name for name in one) else BasicBlock
    blocks = tuple(len({name.split(".")[1] for name in one if name.startswith(f"{stage}.")}) for stage in STAGES)
    first = [one.get(name, (0,))[0] for name in ("conv1.weight", "layer1.0.conv1.weight")]
    fits = (arch for arch, a in ARCHS.items() if (a.block, a.blocks, [a.stem, a.first]) == (block, blocks, first))
    return next(fits, None)


def _stem_of(shapes: dict[str, tuple], layout: Format) -> Stem:
    if any(name.partition(".")[0] in STREAMS for name in shapes):
        return layout.streams
    return layout.small if shapes.get("conv1.weight", (7,))[-1] == 3 else layout.large


def _contains(place: tuple[str, ...], piece: str) -> bool:
    parts = tuple(piece.split("."))
    return any(place[i : i + len(parts)] == parts for i in range(len(place)))


def _under(candidates: list[Candidate], key: str, label: str) -> list[Candidate]:
    exact = [each for each in candidates if ".".join(each.place) == key]
    under = exact or [each for each in candidates if _contains(each.place, key)]
    if not under:
        raise RingbenchError(
            f"{label} has no trunk under the checkpoint key {key!r}; found: {_listed(candidates, key) or 'none'}"
        )
    return under


def _choose(whole: list[Candidate], layout: Format, name: str, label: str) -> Candidate:
    if len(whole) > 1:
        preferred = ([each for each in whole if _contains(each.place, piece)] for piece in layout.preferred)
        whole = next(filter(None, preferred), whole)
    first = whole[0]
    if all(_equal(first, other) for other in whole[1:]):
        return first
    raise RingbenchError(
        f"{label} holds {len(whole)} different trunks and the {name} format does not say which one is meant; "
        f"choose with --checkpoint-key: {_listed(whole)}"
    )


def _equal(one: Candidate, other: Candidate) -> bool:
    names = [name for name in one.tensors if not name.endswith(OPTIONAL)]
    return all(name in other.tensors and torch.equal(one.tensors[name], other.tensors[name]) for name in names)


def _listed(candidates: list[Candidate], key: str = "") -> str:
    """Where the candidates are, the places most like `key` first, and how many more there are."""
    places = dict.fromkeys(".".join(each.place) or "(top)" for each in candidates if each.filled > ATTENTION)
    ordered = sorted(places, key=lambda place: -SequenceMatcher(None, place, key).ratio())
    more = f" and {len(ordered) - SHOWN} more" if ordered[SHOWN:] else ""
    return ", ".join(ordered[:SHOWN]) + more


def _why_none(entries: list[Entry], candidates: list[Candidate], arch: Arch | None) -> str:
    names = [".".join(entry.original) for entry in entries]
    if reason := strangers.reason(names):
        return reason
    near = max(candidates, key=lambda each: each.filled, default=None)
    if near is not None and near.fault and (near.filled > ATTENTION or near.arch is None):
        place = f" at {'.'.join(near.place)}" if near.place else ""
        return f"{near.fault}{place}" + ("; is the arch right?" if arch else "")
    return f"holds no ResNet trunk; its {len(names)} tensors are called {', '.join(names[:4])}"


def _resolution(chosen: Candidate, entries: list[Entry], name: str) -> Resolution:
    used = chosen.entries.values()
    container = _common([entry.original[: entry.depth] for entry in used])
    whole = _common([entry.original for entry in used])
    taken = {entry.original for entry in used}
    dropped = Counter(_group(entry.parts, chosen.place) for entry in entries if entry.original not in taken)
    moved = sum(chosen.tensors[each].shape != entry.tensor.shape for each, entry in chosen.entries.items())
    return Resolution(
        name,
        chosen.arch,
        chosen.stem,
        chosen.tensors,
        ".".join(container),
        ".".join(whole[len(container) :]),
        dict(sorted(dropped.items())),
        moved,
    )


def _group(parts: tuple[str, ...], place: tuple[str, ...]) -> str:
    """The part of a place up to where it leaves the way to the trunk."""
    return ".".join(parts[: len(_common([parts, place])) + 1])


def _common(places: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The parts with which all of them begin."""
    return tuple(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False)))
