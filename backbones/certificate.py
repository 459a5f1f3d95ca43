"""What a checkpoint was, what became of it, and why the result can be trusted: a dict that goes into every result."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from backbones.reading import Document
from backbones.resolving import OPTIONAL, Resolution
from backbones.trunk import Trunk, TwoStream, trunk_sha256
from ringbench.errors import RingbenchError

# What a stem assumes about the network that no tensor in the file shows (backbones.stems).
ASSUMED = {
    "cifar": "the 3x3 stem has stride 1, is padded by 1 and not followed by pooling",
    "cifar_pad2": "the 3x3 stem has stride 1, is padded by 2 and not followed by pooling",
    "cifar_s2": "the 3x3 stem has stride 2, is padded by 1 and not followed by pooling",
    "same_pool": "max pooling is padded as TensorFlow's SAME",
    "same": "every layer of stride 2 is padded as TensorFlow's SAME",
    "lab": "inputs are CIE Lab",
    "ydbdr": "inputs are YDbDr",
}
SHOWN = 4  # names of stubs


def certify(path: Path, document: Document, found: Resolution, trunk: Trunk | TwoStream, checkpoint_key: str | None) -> dict:
    """`matched` counts the tensors that went into the trunk, `dropped` the others by where they are. `trunk_sha256` is that of
    backbones.trunk, so it does not depend on the layout of the file."""
    return {
        "source": path.name,
        "file_sha256": document.file_sha256,
        "container": document.container,
        "stubs": document.stubs[:SHOWN],
        "format": found.format,
        "checkpoint_key": checkpoint_key,
        "path": found.container,
        "prefix": found.prefix,
        "matched": len(found.tensors),
        "missing": 0,
        "reshaped": found.reshaped,
        "dropped": found.dropped,
        "dtypes": dict(sorted(Counter(str(t.dtype).removeprefix("torch.") for t in found.tensors.values()).items())),
        "arch": found.arch,
        "stem": found.stem,
        "assumed": ASSUMED.get(found.stem),
        "trunk_sha256": trunk_sha256(trunk),
    }


def check_numbers(label: str, tensors: dict[str, Tensor]) -> None:
    """Raises RingbenchError that names the first tensor which no sound training leaves behind."""
    for name, tensor in tensors.items():
        if name.endswith(OPTIONAL):
            continue
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise RingbenchError(f"{label}: {name} is {kind}, not floating point; give the file before quantisation")
        least, most = torch.aminmax(tensor.float())
        if not (torch.isfinite(least) and torch.isfinite(most)):
            raise RingbenchError(f"{label}: {name} holds NaN or infinite values; the file is damaged or training diverged")
        if name.endswith("running_var") and least < 0:
            raise RingbenchError(f"{label}: {name} holds a negative variance; the file is damaged")


def check_alive(label: str, trunk: Trunk | TwoStream) -> None:
    """Raises RingbenchError for a network to which all images are one, such as one of zeros."""
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, other = trunk.eval()(images)["res5"]
    if torch.equal(one, other):
        raise RingbenchError(f"{label} gives the same features for all images; its weights are zero or damaged")


def parity(trunk: Trunk | TwoStream, arch: str, stem: str) -> dict | None:
    """The largest difference between the pooled features of `trunk` and torchvision's own network with the same tensors, on noise
    and relative to their norm. None where torchvision has no such network."""
    import torchvision

    build = getattr(torchvision.models, arch, None)
    if build is None or stem != "imagenet":
        return None
    theirs = build(weights=None).eval()
    theirs.fc = torch.nn.Identity()
    theirs.load_state_dict(trunk.state_dict(), strict=True)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = theirs(images), trunk(images)["res5"].mean((2, 3))
    difference = ((found - expected).norm() / expected.norm().clamp_min(1e-12)).item()
    return {"with": f"torchvision {torchvision.__version__}", "difference": round(difference, 9)}
