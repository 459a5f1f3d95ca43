"""Training and prediction by Detectron2's own trainer, hooks and inference loop."""

from collections.abc import Callable, Iterator

import torch
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader
from detectron2.engine import DefaultTrainer, HookBase, hooks
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset
from detectron2.evaluation.coco_evaluation import instances_to_coco_json
from detectron2.utils import comm
from torch import nn

from ringbench.errors import RingbenchError


class Trainer(DefaultTrainer):
    """Detectron2's trainer without its evaluation; `progress(done, total)` is called after each iteration."""

    def __init__(self, cfg: CfgNode, dtype: torch.dtype, progress: Callable[[int, int], None] | None = None) -> None:
        super().__init__(cfg)
        self._trainer.precision = dtype  # of AMP, where the configuration has it
        self._trainer.data_loader = self._remembered(self._trainer.data_loader)
        if progress:
            self.register_hooks([_Told(progress)])

    @property
    def network(self) -> nn.Module:
        return self.model.module if isinstance(self.model, nn.parallel.DistributedDataParallel) else self.model

    def build_hooks(self) -> list[HookBase]:
        kept = [hook for hook in super().build_hooks() if not isinstance(hook, hooks.EvalHook)]
        for hook in kept:
            if isinstance(hook, hooks.PeriodicCheckpointer):
                hook.max_to_keep = 2  # each holds the frozen encoder too
        return kept

    def train(self) -> None:
        """Raises RingbenchError where the loss leaves the numbers; the last checkpoint stays (CASES N2)."""
        try:
            super().train()
        except FloatingPointError as error:
            raise RingbenchError(
                f"training diverged at iteration {self.iter:,} on the images {', '.join(map(str, self._images))} "
                f"({str(error).splitlines()[-1]}); checkpoints from before are in {self.cfg.OUTPUT_DIR}, a result is not"
            ) from None

    def _remembered(self, loader) -> Iterator[list[dict]]:
        for batch in loader:
            self._images = [record["image_id"] for record in batch]
            yield batch


class _Told(HookBase):
    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress

    def after_step(self) -> None:
        self._progress(self.trainer.iter + 1, self.trainer.max_iter)


def predict(cfg: CfgNode, model: nn.Module, category_ids: list[int]) -> list[dict]:
    """Detections of the test set as COCO's results, with the set's ids of the classes; empty but on the first process."""
    loader = build_detection_test_loader(cfg, cfg.DATASETS.TEST[0])
    return inference_on_dataset(model.eval(), loader, _Collected(category_ids)).get("predictions", [])


class _Collected(DatasetEvaluator):
    """Keeps all detections in COCO's form and evaluates nothing."""

    def __init__(self, category_ids: list[int]) -> None:
        self._category_ids, self._found = category_ids, []

    def reset(self) -> None:
        self._found = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for image, output in zip(inputs, outputs, strict=True):
            for detection in instances_to_coco_json(output["instances"].to("cpu"), image["image_id"]):
                self._found.append(detection | {"category_id": self._category_ids[detection["category_id"]]})

    def evaluate(self) -> dict[str, list[dict]]:
        parts = comm.gather(self._found)
        return {"predictions": [detection for part in parts for detection in part]} if comm.is_main_process() else {}
