"""The protocol `detection` applied: an encoder in a detector, trained on one split and measured on the other."""

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.engine import launch

from backbones.trunk import FrozenBackbone, trunk_sha256
from imagesets.annotated import AnnotatedSet
from imagesets.pipeline import Pipeline
from ringbench import children, files
from ringbench.errors import RingbenchError, UsageError
from transfer.detection import checks, config, data
from transfer.detection.evaluate import SUMMARY, VOC, evaluate
from transfer.detection.job import Job, work
from transfer.detection.predictions import WORDS
from transfer.detection.settings import settings
from transfer.spec import ProtocolSpec

VERSION = 3  # of what is done here: a run of another is not gone on with


def measure(
    protocol: ProtocolSpec,
    images: AnnotatedSet,
    backbone: FrozenBackbone,
    pipeline: Pipeline,
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    folder: Path,
    batch: int | None = None,
    nproc: int = 1,
    overfit_check: bool = True,
    again: bool = False,
    label: str = "detector",
) -> dict:
    """Train and test in `folder`, or find there what an equal run left, and return what `transfer.protocols.measure` returns:
    metrics such as box_AP50 and mask_AP, with what was set and how it went.

    `backbone` is on the CPU in float32, `pipeline` resolved and without geometry: images are resized as the configuration says.
    Raises RingbenchError if the folder belongs to another run, unless `again`, which removes it; if the encoder and the one in
    the detector disagree; if training diverges.
    """
    _check_devices(nproc, device)
    chosen, notes = settings(protocol.settings), list(images.notes)
    trunk, certificate = backbone.trunk, backbone.certificate
    if certificate["source"] == "random":
        trunk = checks.calibrated(backbone, pipeline, images.splits["train"])
        seen = min(checks.CALIBRATION, len(images.splits["train"].images))
        notes.append(f"batch norm statistics of the random encoder are those of {seen} training images")
    cfg = config.bound(
        chosen,
        certificate["arch"],
        certificate["stem"],
        pipeline,
        images,
        batch=batch,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    learned = images
    if cfg.MODEL.MASK_ON:
        learned, lacking = data.with_masks(images)
        notes += [f"{lacking} training objects have no mask: trained without them"] if lacking else []
    if cfg.SOLVER.IMS_PER_BATCH % nproc:
        raise UsageError(f"a batch of {cfg.SOLVER.IMS_PER_BATCH} images cannot be shared by {nproc} processes; see --batch")
    cfg.OUTPUT_DIR = str(folder)
    with files.exclusive(folder):
        if again:
            shutil.rmtree(folder, ignore_errors=True)
        loaded = trunk_sha256(backbone.trunk)  # the last bits of calibrated statistics differ with the number of threads
        _claim(folder, cfg, images, {"encoder": loaded, "processes": nproc, "dtype": str(dtype), "version": VERSION})
        if not (folder / "finished.json").exists():
            print(f"{label}: {config.schedule(cfg)}; log in {folder / 'log.txt'}", file=sys.stderr, flush=True)
            job = Job(cfg, learned, backbone, trunk, pipeline, dtype, seed, overfit_check, label)
            with children.working() if nproc > 1 else nullcontext():
                launch(work, nproc, dist_url="auto", args=(job,))
            backbone.verify()
    finished, predictions = _read(folder / "finished.json"), folder / "predictions.json"
    if not predictions.exists() or finished.get("predictions_sha256") != files.sha256_file(predictions):
        raise RingbenchError(f"{predictions} is not what this run wrote; --force trains and predicts again")
    if begun := finished.get("begun"):
        notes.append(f"training was cut short and gone on with at iteration {begun:,}")
    scores = _scores(cfg, images, predictions, seed)
    return {
        "metrics": {f"{WORDS[kind]}_{name}": score for kind, found in scores.items() for name, score in found.metrics.items()},
        "per_class": {WORDS[kind]: found.per_class for kind, found in scores.items()},
        "chance": {f"{WORDS[kind]}_{name}": 0.0 for kind, found in scores.items() for name in found.metrics},
        "interval": "95% bootstrap over images",
        "n": {split: len(part.images) for split, part in images.splits.items()},
        "selected": chosen.model_dump() | _solver(cfg),
        "selected_on": None,
        "grid": None,
        "val_scores": None,
        "grid_edge": False,
        "converged": None,
        "run": {"folder": str(folder), "predictions": str(predictions), **finished},
        "annotations": {split: part.report for split, part in images.splits.items()},
        "notes": notes,
    }


def metrics_of(protocol: ProtocolSpec, style: str) -> set[str]:
    """What the protocol can measure on annotations in that style, some of it only where there are objects of all sizes."""
    kinds = _kinds(config.read(settings(protocol.settings).config))
    found = {f"{WORDS[kind]}_{name}" for kind in kinds for name in SUMMARY[kind]}
    return found | ({f"box_{name}" for name in VOC} if style == "voc" else set())


def _kinds(cfg: CfgNode) -> list[str]:
    return ["bbox", *["segm"] * cfg.MODEL.MASK_ON, *["keypoints"] * cfg.MODEL.KEYPOINT_ON]


def _claim(folder: Path, cfg: CfgNode, images: AnnotatedSet, parts: dict) -> None:
    """Make `folder` the place of this run, and of no other one (a run is gone on with only by the same run)."""
    said = cfg.clone()
    said.OUTPUT_DIR = said.MODEL.DEVICE = ""
    said.DATALOADER.NUM_WORKERS = 0
    identity = parts | {"images": [images.fingerprint, images.split_hash], "configuration": files.digest(said.dump())}
    path = folder / "run.json"
    if path.exists():
        found = _read(path)
        if other := [part for part, value in identity.items() if found.get(part) != value]:
            raise RingbenchError(
                f"{folder} holds a run with another {', '.join(other)}; --force removes it, --results DIR keeps both"
            )
        return
    if (folder / "last_checkpoint").exists():
        raise RingbenchError(f"{folder} holds checkpoints, but no run.json that says of which run; --force removes them")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(cfg.dump(), encoding="utf-8")
    files.write_json(path, identity)


def _read(path: Path) -> dict:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise RingbenchError(f"{path} is broken ({error}); --force trains again") from None
    if not isinstance(found, dict):
        raise RingbenchError(f"{path} is broken (no mapping); --force trains again")
    return found


def _check_devices(nproc: int, device: torch.device) -> None:
    if nproc == 1:
        return
    if device.type != "cuda":
        raise UsageError(f"{nproc} processes need as many GPUs; --nproc does not go with --device {device.type}")
    if device.index is not None:
        raise UsageError(f"{nproc} processes take the first {nproc} GPUs; --device cuda, and CUDA_VISIBLE_DEVICES, choose them")
    if nproc > torch.cuda.device_count():
        raise UsageError(f"{nproc} processes need as many GPUs, here are {torch.cuda.device_count()}; see --nproc")


def _scores(cfg: CfgNode, images: AnnotatedSet, path: Path, seed: int) -> dict:
    predictions, split = json.loads(path.read_text()), images.splits["test"]
    told = {"style": images.style, "keypoints": images.keypoints, "seed": seed}
    return {kind: evaluate(split, split.categories, predictions, kind, **told) for kind in _kinds(cfg)}


def _solver(cfg: CfgNode) -> dict[str, int | float | list[int]]:
    """The schedule as it was, after all scaling."""
    solver = cfg.SOLVER
    return {
        "batch": solver.IMS_PER_BATCH,
        "learning_rate": solver.BASE_LR,
        "iterations": solver.MAX_ITER,
        "steps": list(solver.STEPS),
        "warm_up": solver.WARMUP_ITERS,
    }
