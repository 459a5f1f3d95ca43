"""Training and prediction by Detectron2's own trainer, hooks and inference loop."""

import torch
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader
from detectron2.engine import DefaultTrainer, hooks
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset
from detectron2.evaluation.coco_evaluation import instances_to_coco_json
from detectron2.utils import comm
from torch import nn

from ringbench.errors import RingbenchError


class Trainer(DefaultTrainer):
    """Detectron2's trainer, without its evaluation, in the number type asked for."""

    def __init__(self, cfg: CfgNode, dtype: torch.dtype) -> None:
        super().__init__(cfg)
        self._trainer.precision = dtype
        self.seen: list = []
        self._trainer.data_loader = _Remembered(self._trainer.data_loader, self.seen)

    def build_hooks(self) -> list:
        return [hook for hook in super().build_hooks() if not isinstance(hook, hooks.EvalHook)]


class _Remembered:
    """A loader that leaves the ids of the images of its last batch in `seen`."""

    def __init__(self, loader, seen: list) -> None:
        self.loader, self.seen = loader, seen

    def __iter__(self):
        for batch in self.loader:
            self.seen[:] = [record["image_id"] for record in batch]
            yield batch


def unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def train(trainer: Trainer) -> None:
    """Raises RingbenchError if the loss leaves the numbers; the last checkpoint stays (CASES N2)."""
    try:
        trainer.train()
    except FloatingPointError as error:
        raise RingbenchError(
            f"training diverged at iteration {trainer.iter:,} on images {', '.join(map(str, trainer.seen))} "
            f"({str(error).splitlines()[-1]}); the last checkpoint is kept in {trainer.cfg.OUTPUT_DIR}, and there is no result"
        ) from None


def predict(cfg: CfgNode, model: nn.Module, name: str, category_ids: list[int]) -> list[dict] | None:
    """Detections of the data set `name` as COCO's results, with ids of the data set; None but on the first process."""
    model.eval()
    return inference_on_dataset(model, build_detection_test_loader(cfg, name), _Collected(category_ids)).get("predictions")


class _Collected(DatasetEvaluator):
    """Keeps all detections in COCO's form and evaluates nothing."""

    def __init__(self, category_ids: list[int]) -> None:
        self.category_ids, self.found = category_ids, []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for image, output in zip(inputs, outputs, strict=True):
            for detection in instances_to_coco_json(output["instances"].to("cpu"), image["image_id"]):
                self.found.append(detection | {"category_id": self.category_ids[detection["category_id"]]})

    def evaluate(self) -> dict:
        parts = comm.gather(self.found)
        return {"predictions": [detection for part in parts for detection in part]} if comm.is_main_process() else {}
