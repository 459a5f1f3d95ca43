"""One detector trained and tested: what every process of a run does. A run that was cut short goes on from its last checkpoint.

In the folder of a run: config.yaml, log.txt, metrics.json and TensorBoard's events, checkpoints, predictions.json and, once all
is there, finished.json.
"""

import json
import logging
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng

from backbones.trunk import FrozenBackbone, Trunk, TwoStream
from imagesets.annotated import AnnotatedSet
from imagesets.pipeline import Pipeline
from imagesets.validation import passed_over
from ringbench import files, progress
from ringbench.errors import RingbenchError
from ringbench.stopping import Diverged, Termination
from transfer.detection import checks, data
from transfer.detection import model as detectors
from transfer.detection.evaluate import evaluate
from transfer.detection.train import Trainer, predict

LONG = 1000  # iterations that deserve a look first whether the detector learns at all
FEW, BRIEF = 10, 200  # images, and iterations on them


@dataclass(frozen=True)
class Job:
    """All that a process needs to know. `trunk` holds the weights that go into the detector."""

    cfg: CfgNode
    images: AnnotatedSet
    backbone: FrozenBackbone
    trunk: Trunk | TwoStream
    pipeline: Pipeline
    dtype: torch.dtype
    seed: int
    overfit_check: bool
    label: str

    @property
    def folder(self) -> Path:
        return Path(self.cfg.OUTPUT_DIR)


def work(job: Job) -> None:
    """Train, test and leave everything in the folder of the run."""
    first, started = comm.is_main_process(), time.monotonic()
    bar = progress.bar(job.label) if first else nullcontext()
    with _logged(job.folder if first else None), bar as update, Termination() as termination, _float32():
        data.register(job.images)
        if job.overfit_check and job.cfg.SOLVER.MAX_ITER >= LONG and not (job.folder / "last_checkpoint").exists():
            _overfit(job, termination)
        trainer, parity = _trainer(job, termination, update)
        begun = trainer.resume()
        if first and begun:
            print(f"{job.label}: goes on at iteration {begun:,}", file=sys.stderr, flush=True)
        frozen = _frozen(job, trainer, begun, first)
        trained = time.monotonic()
        trainer.train()
        if detectors.frozen_sha256(trainer.network) != frozen:
            raise RingbenchError("the frozen part of the detector changed; this is a fault of ringbench or of a plug-in")
        predicting = time.monotonic()
        predictions = predict(job.cfg, trainer.network, job.images.category_ids, termination)
        seconds = {"prepare": trained - started, "train": predicting - trained, "predict": time.monotonic() - predicting}
        if first:
            _write(job.folder / "predictions.json", predictions)
            told = {"parity": parity, "frozen_sha256": frozen, "seconds": seconds, "begun": begun}
            told["predictions_sha256"] = files.sha256_file(job.folder / "predictions.json")
            files.write_json(job.folder / "finished.json", told)


def _frozen(job: Job, trainer: Trainer, begun: int, first: bool) -> str | None:
    """The hash of what must not move. Raises RingbenchError where a run that goes on did not begin with it."""
    found, path = detectors.frozen_sha256(trainer.network), job.folder / "frozen.json"
    if begun and (not path.exists() or path.read_text(errors="replace") != f"{json.dumps(found)}\n"):
        raise RingbenchError(f"what is frozen in {job.folder} is not what the run began with; --force begins again")
    if first and not begun:
        files.write_json(path, found)
    return found


def _write(path: Path, predictions: list[dict]) -> None:
    """On one line: indents would make it three times as long."""
    try:
        files.write_text(path, json.dumps(predictions, allow_nan=False) + "\n")
    except ValueError:
        raise Diverged("the detector predicts numbers that are not finite; look at its log and its learning rate") from None


def _trainer(job: Job, termination: Termination, update=None) -> tuple[Trainer, dict[str, float]]:
    """A detector with the encoder in it, checked, and how far its features are from the encoder's."""
    seed_all_rng((job.seed + comm.get_rank() + _begun(job.folder)) % 2**32)
    trainer = Trainer(job.cfg, job.dtype, update, termination)
    detectors.fill(trainer.network, job.trunk)
    checks.check_pixels(trainer.network, job.pipeline)
    file = job.images.splits["train"].images[0]["file_name"]
    return trainer, checks.check_parity(trainer.network, job.backbone, job.trunk, job.pipeline, file)


def _begun(folder: Path) -> int:
    """The iteration of the last checkpoint: a run that goes on draws other images than those it began with."""
    last = folder / "last_checkpoint"
    number = re.search(r"_(\d+)\.pth", last.read_text(errors="replace")) if last.exists() else None
    return int(number[1]) + 1 if number else 0


def _overfit(job: Job, termination: Termination) -> None:
    """Raises RingbenchError if the detector cannot learn a few images by heart (CASES E2)."""
    cfg, split = job.cfg.clone(), job.images.splits["train"]
    points = cfg.MODEL.KEYPOINT_ON  # Detectron2 passes over images that have none
    objects = [each for each in split.annotations if not passed_over(each) and (not points or each["num_keypoints"])]
    annotated = {annotation["image_id"] for annotation in objects}
    images = [image for image in split.images if image["id"] in annotated][:FEW]
    ids = {image["id"] for image in images}
    few = replace(split, images=images, annotations=[each for each in split.annotations if each["image_id"] in ids])
    name = data.name_of(job.images, "few")
    data.enter(name, data.records(few, job.images.category_ids), job.images)
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = (name,)
    cfg.OUTPUT_DIR = str(job.folder / "overfit")
    cfg.SOLVER.MAX_ITER, cfg.SOLVER.STEPS, cfg.SOLVER.WARMUP_ITERS = BRIEF, (), BRIEF // 4
    cfg.TEST.PRECISE_BN.NUM_ITER = FEW
    trainer, _ = _trainer(replace(job, cfg=cfg), termination)
    trainer.train()
    predictions = predict(cfg, trainer.network, job.images.category_ids, termination)
    score = 0.0
    if comm.is_main_process():
        score = evaluate(few, few.categories, predictions, "bbox", resamples=1).metrics["AP50"]["value"]
        shutil.rmtree(cfg.OUTPUT_DIR, ignore_errors=True)
    if max(comm.all_gather(score)) <= 0:
        raise RingbenchError(
            f"after {BRIEF} iterations on {len(images)} images the detector finds nothing on the same images (AP50 0): the "
            "annotations, the encoder or the schedule are at fault; --no-overfit-check trains nevertheless"
        )


@contextmanager
def _float32() -> Iterator[None]:
    """What is called float32 is: by default cuDNN multiplies in TF32, which has the precision of float16."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@contextmanager
def _logged(folder: Path | None) -> Iterator[None]:
    """Detectron2 writes to log.txt in `folder`, not to the terminal; its libraries' warnings about each other are dropped."""
    loggers = [logging.getLogger(name) for name in ("detectron2", "fvcore", "iopath")]
    handler = _Log(folder / "log.txt") if folder else logging.NullHandler()
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", datefmt="%m/%d %H:%M:%S"))
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()


class _Log(logging.FileHandler):
    """On a full disk lines are lost, and not told of one by one: the next checkpoint says it."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass
