"""A registry entry becomes a frozen backbone: every trunk tensor is filled from the file, or loading stops."""

from pathlib import Path

import torch

from backbones import export, formats, reading, resolving, sources
from backbones.certificate import certify, check_alive, check_numbers
from backbones.resolving import OPTIONAL
from backbones.spec import Arch, BackboneSpec, Stem
from backbones.trunk import FrozenBackbone, Trunk, TwoStream, build, random_trunk, trunk_sha256


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
        certificate = {"source": "random", "seed": chosen, "arch": spec.arch, "stem": spec.stem}
        certificate["trunk_sha256"] = trunk_sha256(trunk)
    else:
        trunk, certificate = _from_file(spec, path)
    return FrozenBackbone(trunk, certificate, device=device, dtype=dtype)


def inspect(
    path: Path,
    checkpoint_key: str | None = None,
    format: str = "auto",
    arch: Arch | None = None,
    stem: Stem | None = None,
) -> dict[str, str]:
    """What a checkpoint holds: {"arch", "stem", "format", "pipeline"}, told from names and shapes; "pipeline" is the format's.

    Files written by `bench convert` say themselves what their tensors do not show. Raises RingbenchError as `load` does.
    """
    document = reading.read(path)
    said = export.said_by(path) if document.container == "safetensors" else {}
    found = resolving.resolve(
        document.tree, str(path), format=format, arch=arch, stem=stem or said.get("stem"), checkpoint_key=checkpoint_key
    )
    pipeline = said.get("pipeline") or formats.default_pipeline(found.format)
    return {"arch": found.arch, "stem": found.stem, "format": found.format, "pipeline": pipeline}


def _from_file(spec: BackboneSpec, path: Path) -> tuple[Trunk | TwoStream, dict]:
    document = reading.read(path)
    found = resolving.resolve(
        document.tree, str(path), format=spec.format, arch=spec.arch, stem=spec.stem, checkpoint_key=spec.checkpoint_key
    )
    check_numbers(str(path), found.tensors)
    with torch.device("meta"):
        trunk = build(spec.arch, spec.stem)
    counter = torch.tensor(0)
    state = {
        name: counter.clone() if name.endswith(OPTIONAL) else found.tensors[name].to(torch.float32, copy=True).contiguous()
        for name in trunk.state_dict()
    }
    trunk.load_state_dict(state, strict=True, assign=True)
    check_alive(str(path), trunk)
    return trunk, certify(path, document, found, trunk, spec.checkpoint_key)
