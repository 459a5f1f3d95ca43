"""A registry entry becomes a frozen backbone: every trunk tensor is filled from the file, or loading stops."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from backbones import formats, sources
from backbones.spec import BackboneSpec
from backbones.trunk import FrozenBackbone, Trunk, random_trunk, trunk_sha256
from ringbench import files
from ringbench.errors import RingbenchError

OPTIONAL = "num_batches_tracked"  # counts training steps; a frozen forward pass never reads it


def load(
    spec: BackboneSpec,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    download: bool = False,
) -> FrozenBackbone:
    """The frozen extractor of `spec`, with its certificate. `seed` initialises random backbones that fix none themselves.

    Raises Unavailable if the file is missing, RingbenchError if it cannot be read or does not hold the whole trunk.
    """
    path = sources.require(spec, download=download)
    if path is None:
        chosen = seed if spec.seed is None else spec.seed
        trunk = random_trunk(spec.arch, spec.stem, chosen)
        certificate = {"source": "random", "seed": chosen}
    else:
        trunk, certificate = _from_file(spec, path)
    certificate |= {"arch": spec.arch, "stem": spec.stem, "trunk_sha256": trunk_sha256(trunk)}
    return FrozenBackbone(trunk, certificate, device=device, dtype=dtype)


def inspect(path: Path, checkpoint_key: str | None = None, format: str = "auto") -> dict[str, str]:
    """What a checkpoint holds: {"arch", "stem", "format"}, told from its tensor names and shapes."""
    name, tensors = _read(path, checkpoint_key, format)
    kernel = tensors["conv1.weight"].shape[-1] if "conv1.weight" in tensors else 7
    arch = "resnet50" if any(".conv3." in tensor for tensor in tensors) else "resnet18"
    return {"arch": arch, "stem": "imagenet" if kernel == 7 else "cifar", "format": name}


def _read(path: Path, checkpoint_key: str | None, format: str) -> tuple[str, dict[str, Tensor]]:
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file is, the sentence is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RingbenchError(f"{path} cannot be read as a checkpoint ({reason})") from None
    tensors = tree.get(checkpoint_key) if checkpoint_key and isinstance(tree, dict) else tree
    if not isinstance(tensors, dict) or not any(isinstance(value, Tensor) for value in tensors.values()):
        keys = ", ".join(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__
        raise RingbenchError(
            f"{path} holds no tensors where they were looked for (found: {keys}); name the place with --checkpoint-key"
        )
    name = "torchvision" if format == "auto" else format
    return name, {key: value for key, value in tensors.items() if isinstance(value, Tensor)}


def _from_file(spec: BackboneSpec, path: Path) -> tuple[Trunk, dict]:
    name, tensors = _read(path, spec.checkpoint_key, spec.format)
    found = formats.get(name).trunk(tensors)
    trunk = random_trunk(spec.arch, spec.stem, seed=0)
    wanted = trunk.state_dict()
    _audit(spec, path, wanted, found, tensors)
    trunk.load_state_dict({key: found.get(key, wanted[key]) for key in wanted}, strict=True)
    dropped = Counter(key.split(".")[0] for key in tensors if key not in found)
    return trunk, {
        "source": path.name,
        "file_sha256": files.sha256_file(path),
        "format": name,
        "checkpoint_key": spec.checkpoint_key,
        "matched": sum(key in found for key in wanted),
        "missing": 0,
        "dropped": dict(sorted(dropped.items())),
    }


def _audit(spec: BackboneSpec, path: Path, wanted: dict, found: dict, tensors: dict) -> None:
    """Stop unless the file fills the trunk exactly: nothing missing, nothing left over, every shape right, every value finite."""
    missing = [key for key in wanted if key not in found and not key.endswith(OPTIONAL)]
    surplus = [key for key in found if key not in wanted]
    reshaped = [key for key in wanted if key in found and found[key].shape != wanted[key].shape]
    if missing:
        total = sum(not key.endswith(OPTIONAL) for key in wanted)
        raise RingbenchError(
            f"{path} fills {total - len(missing)} of {total} tensors of a {spec.arch} ({spec.stem} stem); "
            f"missing {missing[0]} and {len(missing) - 1} more; the file's names look like: {', '.join(list(tensors)[:4])}"
        )
    if surplus:
        raise RingbenchError(
            f"{path} has {len(surplus)} trunk tensors that a {spec.arch} has not, first {surplus[0]}; is the arch right?"
        )
    if reshaped:
        key = reshaped[0]
        raise RingbenchError(
            f"{path}: {key} is {tuple(found[key].shape)}, a {spec.arch} with {spec.stem} stem needs {tuple(wanted[key].shape)}"
        )
    for key, value in found.items():
        if not torch.isfinite(value).all():
            raise RingbenchError(f"{path}: {key} holds NaN or infinite values; the file is damaged or training diverged")
        if key.endswith("running_var") and (value < 0).any():
            raise RingbenchError(f"{path}: {key} holds a negative variance; the file is damaged")
