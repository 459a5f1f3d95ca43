"""Trunks written for others to read: one safetensors file, torchvision's state dict, or Detectron2's pickle.

Equal trunks give equal bytes. Beside each file lies a card of the same name in JSON, with the certificate of the checkpoint.
"""

import io
import json
import pickle
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from backbones.certificate import parity
from backbones.resolving import OPTIONAL
from backbones.trunk import FrozenBackbone
from ringbench import __version__, files
from ringbench.errors import UsageError

Target = Literal["safetensors", "torchvision", "detectron2"]
SAID = "ringbench"  # the metadata entry for what tensors do not show


def write(backbone: FrozenBackbone, target: Target, out: Path, pipeline: str, detector: dict | None = None) -> Path:
    """Write the trunk of `backbone` to `out` and return the path of its card. All numbers are float32.

    `detector` is the part of a Detectron2 configuration that says how pixels go in; it stands in the card.

    Raises UsageError where the target has no such network.
    """
    certificate = backbone.certificate
    state = {name: tensor.contiguous() for name, tensor in backbone.trunk.state_dict().items()}
    said = {"arch": certificate["arch"], "stem": certificate["stem"], "pipeline": pipeline}
    match target:
        case "safetensors":
            data = save(state, metadata={SAID: json.dumps(said, sort_keys=True)})
        case "torchvision":
            _only(certificate, ("imagenet", "cifar", "cifar_pad2", "cifar_s2"), target)
            buffer = io.BytesIO()  # in a named file the name would become part of it
            torch.save(state, buffer)
            data = buffer.getvalue()
        case "detectron2":
            _only(certificate, ("imagenet",), target)
            data = pickle.dumps(detectron2(state), protocol=4)
    with files.atomic_path(out) as temporary:
        temporary.write_bytes(data)
    card = out.with_suffix(".json")
    checked = parity(backbone.trunk, certificate["arch"], certificate["stem"])
    told = {**said, "target": target, "certificate": certificate, "parity": checked, "ringbench": __version__}
    files.write_json(card, told | ({"detector": detector} if detector else {}))
    return card


def said_by(path: Path) -> dict[str, str]:
    """What a safetensors file written here says about its trunk: arch, stem and pipeline; {} for any other."""
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get(SAID, "{}"))


def detectron2(state: dict[str, Tensor]) -> dict:
    """torchvision's names and torch's tensors -> what Detectron2's checkpointer reads: its ResNet's names, numpy arrays."""
    arrays = {_detectron2_name(name): tensor.numpy() for name, tensor in state.items() if not name.endswith(OPTIONAL)}
    return {"model": arrays, "__author__": "ringbench", "matching_heuristics": True}


def _detectron2_name(name: str) -> str:
    stage, _, rest = name.partition(".")
    if stage in ("conv1", "bn1"):
        return f"stem.conv1.{'norm.' * (stage == 'bn1')}{rest}"
    block, layer, rest = rest.split(".", 2)
    if layer == "downsample":
        number, rest = rest.split(".")
        layer = "shortcut" if number == "0" else "shortcut.norm"
    elif layer.startswith("bn"):
        layer = f"conv{layer[2:]}.norm"
    return f"res{int(stage.removeprefix('layer')) + 1}.{block}.{layer}.{rest}"


def _only(certificate: dict, stems: tuple[str, ...], target: str) -> None:
    if certificate["stem"] not in stems:
        raise UsageError(
            f"{target} has no ResNet with the stem {certificate['stem']}, which {certificate.get('source')} needs; "
            "convert it to safetensors"
        )
