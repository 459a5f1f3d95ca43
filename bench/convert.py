"""`bench convert`: a checkpoint, whatever its layout, becomes a file that others read."""

from pathlib import Path
from typing import get_args

from backbones.spec import Arch, BackboneSpec, Stem
from imagesets import pipeline as pipelines
from ringbench.errors import UsageError
from transfer.detection.settings import detector_inputs


def convert(
    checkpoint: Path,
    target: str,
    out: Path,
    arch: str | None = None,
    stem: str | None = None,
    format: str = "auto",
    checkpoint_key: str | None = None,
    pipeline: str | None = None,
) -> None:
    """Raises UsageError where the target has no such network, and as `backbones.loading.load`; nothing is written then."""
    from backbones import export, loading

    spec = described(checkpoint, arch, stem, format, checkpoint_key, pipeline)
    backbone = loading.load(spec)
    certificate = backbone.certificate
    detector = detector_inputs(pipelines.parse(spec.pipeline)) if target == "detectron2" else None
    card = export.write(backbone, target, out, spec.pipeline, detector)
    print(f"wrote {out}: all {certificate['matched']} tensors of a {spec.arch}, {spec.stem} stem ({spec.format} format)")
    print(f"  left out  {left_out(certificate)}")
    if detector:
        print(f"  detector  {', '.join(f'{key} {value}' for key, value in detector.items())}")
    print(f"  card      {card}")


def described(
    checkpoint: Path,
    arch: str | None,
    stem: str | None,
    format: str,
    checkpoint_key: str | None,
    pipeline: str | None,
) -> BackboneSpec:
    """An entry for a file: what a person said of it, and for the rest what the file shows."""
    from backbones import loading

    for word, known, what in ((arch, get_args(Arch), "arch"), (stem, get_args(Stem), "stem")):
        if word is not None and word not in known:
            raise UsageError(f"unknown {what} {word!r}; expected {', '.join(known)}")
    found = loading.inspect(checkpoint, checkpoint_key, format, arch, stem)
    return BackboneSpec(
        name="checkpoint",
        title=checkpoint.name,
        source=str(checkpoint),
        checkpoint_key=checkpoint_key,
        **found | ({"pipeline": pipeline} if pipeline else {}),
    )


def left_out(certificate: dict) -> str:
    return ", ".join(f"{group} ({count})" for group, count in certificate["dropped"].items()) or "nothing"
