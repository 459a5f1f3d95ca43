"""Training and prediction by Detectron2's own trainer, hooks and inference loop."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader, build_detection_train_loader
from detectron2.engine import DefaultTrainer, HookBase, hooks
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset
from detectron2.evaluation.coco_evaluation import instances_to_coco_json
from detectron2.utils import comm
from torch import nn

from ringbench import files
from ringbench.errors import RingbenchError
from ringbench.stopping import Diverged, Preempted, Termination
from transfer.detection.mapper import Mapper

AGAIN = "the same command (without --force, which begins again) goes on"


class Trainer(DefaultTrainer):
    """Detectron2's trainer without its evaluation. Each iteration calls `progress(done, total)` and asks `termination`."""

    def __init__(
        self,
        cfg: CfgNode,
        dtype: torch.dtype,
        progress: Callable[[int, int], None] | None = None,
        termination: Termination | None = None,
    ) -> None:
        super().__init__(cfg)
        self._termination = termination or Termination()
        self._trainer.precision = dtype  # of AMP, where the configuration has it
        self._trainer.data_loader = self._batches = _Batches(self._trainer.data_loader)
        if progress:
            self.register_hooks([_Told(progress)])

    @property
    def network(self) -> nn.Module:
        return self.model.module if isinstance(self.model, nn.parallel.DistributedDataParallel) else self.model

    @classmethod
    def build_train_loader(cls, cfg: CfgNode):
        return build_detection_train_loader(cfg, mapper=Mapper(cfg, is_train=True))

    def build_hooks(self) -> list[HookBase]:
        self.checkpointer = Checkpointer(self.model, self.cfg.OUTPUT_DIR, trainer=weakref.proxy(self))
        kept = [hook for hook in super().build_hooks() if not isinstance(hook, hooks.EvalHook)]
        for hook in kept:
            if isinstance(hook, hooks.PeriodicCheckpointer):
                hook.max_to_keep = 2  # each holds the frozen encoder too
        return kept

    def resume(self) -> int:
        """Go on from the last checkpoint, if there is one, and return the iteration begun at.

        Raises RingbenchError for a checkpoint that cannot be read.
        """
        try:
            self.resume_or_load(resume=True)
        except Exception as error:  # whatever is wrong with the file, the sentence is the same
            raise RingbenchError(
                f"the last checkpoint in {self.cfg.OUTPUT_DIR} cannot be gone on from ({_reason(error)}); --force begins again"
            ) from error
        if comm.is_main_process():
            last = Path(self.checkpointer.get_checkpoint_file())
            for path in Path(self.cfg.OUTPUT_DIR).glob("model_*.pth"):  # Detectron2 forgets those of an earlier process
                if path != last:
                    path.unlink()
        return self.start_iter

    def train(self) -> None:
        """Raises Diverged where the loss leaves the numbers, Preempted after SIGTERM; the last checkpoint stays (CASES N2)."""
        try:
            super().train()
        except FloatingPointError as error:
            images = ", ".join(map(str, self._batches.images)) + " of the first process" * (comm.get_world_size() > 1)
            raise Diverged(
                f"training diverged at iteration {self.iter:,} on the images {images} ({str(error).splitlines()[-1]}); "
                f"checkpoints from before are in {self.cfg.OUTPUT_DIR}, a result is not"
            ) from None
        except (OSError, RuntimeError):
            if not self._termination.come:
                raise
            self._leave(self.iter)  # SIGTERM came to the workers of the loader too, and a batch never came

    def after_step(self) -> None:
        """Between two iterations, after every hook has seen the last one: a place to stop."""
        super().after_step()
        if max(comm.all_gather(self._termination.come)) and self.iter + 1 < self.max_iter:
            self._leave(self.iter + 1)

    def _leave(self, done: int) -> NoReturn:
        """With a checkpoint of so many iterations, unless that is where this run began."""
        if done > self.start_iter:
            self.checkpointer.save(f"model_{done - 1:07d}", iteration=done - 1)
        comm.synchronize()  # a process that ends before the first one has written would end that one too
        raise Preempted(f"stopped by SIGTERM after iteration {done:,}; {AGAIN} in {self.cfg.OUTPUT_DIR}")


class Checkpointer(DetectionCheckpointer):
    """Detectron2's; `last_checkpoint` never names a file that is not whole."""

    def save(self, name: str, **more: object) -> None:
        """Raises RingbenchError where the disk is full or may not be written; what was saved before stays."""
        path = Path(self.save_dir, f"{name}.pth")
        try:
            super().save(name, **more)
        except (OSError, RuntimeError) as error:  # torch says of a full disk only that the writer failed
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise RingbenchError(f"{path} cannot be written ({_reason(error)}): is the disk full? Make room; {AGAIN}") from error

    def _log_incompatible_keys(self, incompatible) -> None:
        """Called for a checkpoint with other tensors than the model, which would keep its first ones without a word."""
        wrong = [*incompatible.missing_keys, *incompatible.unexpected_keys, *(key for key, *_ in incompatible.incorrect_shapes)]
        if wrong:
            raise RingbenchError(f"it lacks, or has in another shape, or too many: {', '.join(sorted(wrong)[:3])}")

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        files.sync(Path(self.save_dir, last_filename_basename))
        files.write_text(Path(self.save_dir, "last_checkpoint"), last_filename_basename)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class _Batches:
    """A loader that remembers the ids of the images it gave last."""

    def __init__(self, loader: Iterable[list[dict]]) -> None:
        self._loader, self.images = loader, []

    def __iter__(self) -> Iterator[list[dict]]:
        for batch in self._loader:
            self.images = [record["image_id"] for record in batch]
            yield batch


class _Told(HookBase):
    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress

    def after_step(self) -> None:
        self._progress(self.trainer.iter + 1, self.trainer.max_iter)


def predict(cfg: CfgNode, model: nn.Module, category_ids: list[int], termination: Termination) -> list[dict]:
    """Detections of the test set as COCO's results, with the set's ids of the classes; empty but on the first process.

    Raises Preempted after SIGTERM.
    """
    loader = build_detection_test_loader(cfg, cfg.DATASETS.TEST[0], mapper=Mapper(cfg, is_train=False))
    return inference_on_dataset(model.eval(), loader, _Collected(category_ids, termination)).get("predictions", [])


class _Collected(DatasetEvaluator):
    """Keeps all detections in COCO's form and evaluates nothing."""

    def __init__(self, category_ids: list[int], termination: Termination) -> None:
        self._category_ids, self._termination, self._found = category_ids, termination, []

    def reset(self) -> None:
        self._found = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        if self._termination.come:
            raise Preempted(f"stopped by SIGTERM after training; {AGAIN} with predicting")
        for image, output in zip(inputs, outputs, strict=True):
            for detection in instances_to_coco_json(output["instances"].to("cpu"), image["image_id"]):
                self._found.append(detection | {"category_id": self._category_ids[detection["category_id"]]})

    def evaluate(self) -> dict[str, list[dict]]:
        parts = comm.gather(self._found)
        return {"predictions": [detection for part in parts for detection in part]} if comm.is_main_process() else {}
