"""Detectron2's configuration of a run: a readable YAML file, bound to an encoder, an image set and a machine."""

import os

import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.engine import DefaultTrainer

from imagesets.annotated import AnnotatedSet
from imagesets.pipeline import Pipeline
from imagesets.validation import passed_over
from ringbench.errors import UsageError
from transfer.detection.data import name_of
from transfer.detection.settings import CONFIGS, Settings, detector_inputs

FREEZE_AT = {"encoder": 5, "trunk": 4, "none": 0}  # stem .. res5, stem .. res4, nothing
NAMES = {  # what takes the place of Detectron2's ResNet
    "build_resnet_backbone": "build_trunk_backbone",
    "build_resnet_fpn_backbone": "build_trunk_fpn_backbone",
    "Res5ROIHeads": "TrunkRes5ROIHeads",
}


def read(name: str) -> CfgNode:
    """The configuration of that name, with the section MODEL.TRUNK to be filled in."""
    cfg = get_cfg()
    cfg.MODEL.TRUNK = CfgNode({"ARCH": "", "STEM": ""})
    cfg.merge_from_file(str(CONFIGS / f"{name}.yaml"))
    return cfg


def bound(
    chosen: Settings,
    arch: str,
    stem: str,
    pipeline: Pipeline,
    images: AnnotatedSet,
    *,
    batch: int | None,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> CfgNode:
    """The configuration in full.

    Raises UsageError where it asks for masks or keypoints that a split lacks, or for a pyramid on a stem that leaves res2 larger
    than a quarter of the image.
    """
    cfg = read(chosen.config)
    model = cfg.MODEL
    if stem.startswith("cifar") and "fpn" in model.BACKBONE.NAME:
        raise UsageError(f"a pyramid needs res2 .. res5 of strides 4 .. 32, the stem {stem} has smaller ones; use a C4 protocol")
    model.TRUNK.ARCH, model.TRUNK.STEM = arch, stem
    for part in (model.BACKBONE, model.ROI_HEADS):
        part.NAME = NAMES.get(part.NAME, part.NAME)
    model.BACKBONE.FREEZE_AT = FREEZE_AT[chosen.freeze]
    model.WEIGHTS = ""
    cfg.merge_from_list([part for item in detector_inputs(pipeline).items() for part in item])
    _fit_to(cfg, images)
    cfg.DATASETS.TRAIN, cfg.DATASETS.TEST = ((name_of(images, split),) for split in ("train", "test"))
    cfg = scaled(cfg, batch, chosen.iterations)
    cfg.SEED, cfg.MODEL.DEVICE = seed, str(device)
    cfg.SOLVER.AMP.ENABLED = dtype != torch.float32
    if cfg.SOLVER.AMP.ENABLED and device.type != "cuda":
        raise UsageError(f"Detectron2 trains in {dtype} on CUDA only; use --dtype float32")
    workers = (os.cpu_count() or 1) if device.type == "cuda" else 0  # on a CPU decoding is the smaller part, and in turn
    cfg.DATALOADER.NUM_WORKERS = min(cfg.DATALOADER.NUM_WORKERS, workers)
    return cfg


def scaled(cfg: CfgNode, batch: int | None, iterations: int | None) -> CfgNode:
    """Another batch by the linear rule (Goyal et al. 2017), as Detectron2 applies it; then `iterations` in all, the steps and the
    warm-up in proportion, and no more batches for precise batch norm statistics than for training."""
    cfg = cfg.clone()
    if batch and batch != cfg.SOLVER.IMS_PER_BATCH:
        cfg.SOLVER.REFERENCE_WORLD_SIZE = cfg.SOLVER.IMS_PER_BATCH  # a worker for each image
        cfg = DefaultTrainer.auto_scale_workers(cfg, batch)
        cfg.SOLVER.REFERENCE_WORLD_SIZE = 0
    if iterations:
        share = iterations / cfg.SOLVER.MAX_ITER
        cfg.SOLVER.MAX_ITER = iterations
        cfg.SOLVER.STEPS = tuple(sorted({int(step * share) for step in cfg.SOLVER.STEPS} - {0}))
        cfg.SOLVER.WARMUP_ITERS = round(cfg.SOLVER.WARMUP_ITERS * share)
        cfg.TEST.PRECISE_BN.NUM_ITER = min(cfg.TEST.PRECISE_BN.NUM_ITER, iterations)
    cfg.SOLVER.CHECKPOINT_PERIOD = max(1, min(5000, cfg.SOLVER.MAX_ITER // 4))  # a short run too goes on after a crash
    return cfg


def schedule(cfg: CfgNode) -> str:
    """The schedule in words."""
    solver = cfg.SOLVER
    drops = f"x {solver.GAMMA:g} at {' and '.join(f'{step:,}' for step in solver.STEPS)}, " if solver.STEPS else ""
    return (
        f"{solver.MAX_ITER:,} iterations of {solver.IMS_PER_BATCH} images, learning rate {solver.BASE_LR:g}, "
        f"{drops}warm-up {solver.WARMUP_ITERS:,}"
    )


def _fit_to(cfg: CfgNode, images: AnnotatedSet) -> None:
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = len(images.classes)
    if cfg.MODEL.MASK_ON:
        cfg.INPUT.MASK_FORMAT = _mask_format(images)
    if cfg.MODEL.KEYPOINT_ON:
        if images.keypoints is None:
            raise UsageError(f"image set '{images.spec.name}' has no keypoints, which this protocol trains on")
        for name, split in images.splits.items():
            if not any(each["num_keypoints"] for each in split.annotations if not passed_over(each)):
                raise UsageError(f"image set '{images.spec.name}' has no object with a visible keypoint in {name}")
        cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS = len(images.keypoints.names)
        cfg.TEST.KEYPOINT_OKS_SIGMAS = list(images.keypoints.sigmas)


def _mask_format(images: AnnotatedSet) -> str:
    """Raises UsageError where there is no mask to train on, or where an object of the test split has none."""
    train, test = (images.splits[split].annotations for split in ("train", "test"))
    # Detectron2 trains on no crowd, and COCO's are its only masks that are no polygons.
    learned = [each["segmentation"] for each in train if "segmentation" in each and not each["iscrowd"]]
    if not learned:
        raise UsageError(f"image set '{images.spec.name}' has no masks, which this protocol trains on")
    if lacking := sum("segmentation" not in each for each in test):
        raise UsageError(
            f"{lacking} of {len(test)} test annotations of image set '{images.spec.name}' have no mask to compare with; a "
            "protocol of boxes alone measures on all of them"
        )
    return "polygon" if all(isinstance(mask, list) for mask in learned) else "bitmask"
