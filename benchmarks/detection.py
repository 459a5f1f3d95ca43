"""An iteration of a C4 detector with the encoder in it frozen, against stock Detectron2. Ratios of one run.

    python benchmarks/detection.py [ROUNDS]

Mask R-CNN with ResNet-50 as MoCo sets it up, 80 classes, 2 images of 320 x 320, 48 regions of each (as many to the pixel as 512
of an image of 800 x 1,333): stock Detectron2 freezes stem to res4 (FREEZE_AT 5) and trains res5. The weights are random, so the
learning rate is 0 and proposals are the anchors themselves: untrained weights diverge, and boxes all over the place leave a few
regions only. Each round runs the contenders one after the other, each in a process of its own, so that a machine whose speed
drifts slows all of them and the peak of its memory is its own.
"""

import json
import resource
import subprocess
import sys
import time
import warnings
from statistics import median

ITERATIONS = 4
REGIONS = 48  # of an image
TARGETS = {"encoder": (0.55, 0.6), "trunk": (1.0, None)}  # time, memory


def built(contender: str):
    """The detector, ready to train, and its optimizer."""
    from detectron2.config import CfgNode, get_cfg
    from detectron2.modeling import build_model
    from detectron2.solver import build_optimizer

    from backbones.trunk import random_trunk
    from transfer.detection import model as detectors
    from transfer.detection.config import FREEZE_AT, NAMES
    from transfer.detection.settings import CONFIGS

    cfg = get_cfg()
    cfg.merge_from_file(str(CONFIGS / "coco_c4_1x.yaml"))
    cfg.MODEL.DEVICE, cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE = "cpu", REGIONS
    cfg.SOLVER.BASE_LR = 0.0
    cfg.MODEL.BACKBONE.FREEZE_AT = 5
    if contender != "stock":
        cfg.MODEL.TRUNK = CfgNode({"ARCH": "resnet50", "STEM": "imagenet"})
        cfg.MODEL.BACKBONE.NAME, cfg.MODEL.ROI_HEADS.NAME = NAMES[cfg.MODEL.BACKBONE.NAME], NAMES[cfg.MODEL.ROI_HEADS.NAME]
        cfg.MODEL.BACKBONE.FREEZE_AT = FREEZE_AT[contender]
    model = build_model(cfg).train()
    model.proposal_generator.rpn_head.anchor_deltas.weight.data.zero_()
    if contender != "stock":
        detectors.fill(model, random_trunk("resnet50", "imagenet", 0))
    return model, build_optimizer(cfg, model)


def batch() -> list[dict]:
    import torch
    from detectron2.structures import BitMasks, Boxes, Instances

    generator = torch.Generator().manual_seed(0)
    images = []
    for _ in range(2):
        corners = torch.randint(0, 200, (8, 2), generator=generator).float()
        sizes = torch.randint(30, 120, (8, 2), generator=generator).float()
        masks = torch.zeros(8, 320, 320, dtype=torch.bool)
        for mask, (x, y), (width, height) in zip(masks, corners.int().tolist(), sizes.int().tolist(), strict=True):
            mask[y : y + height, x : x + width] = True
        instances = Instances((320, 320), gt_boxes=Boxes(torch.cat((corners, corners + sizes), 1)), gt_masks=BitMasks(masks))
        instances.gt_classes = torch.arange(8)
        pixels = torch.randint(0, 256, (3, 320, 320), dtype=torch.uint8, generator=generator)
        images.append({"image": pixels, "instances": instances, "height": 320, "width": 320})
    return images


def contend(contender: str) -> None:
    """Print the median of the CPU seconds of an iteration and by how much memory grew at its peak, in MB."""
    import torch
    from detectron2.utils.events import EventStorage

    torch.manual_seed(0)
    model, optimizer = built(contender)
    images, seconds, regions = batch(), [], []
    model.roi_heads.res5.register_forward_pre_hook(lambda _, inputs: regions.append(len(inputs[0])))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with EventStorage():
        for _ in range(ITERATIONS):
            started = time.process_time()
            losses = sum(model(images).values())
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            seconds.append(time.process_time() - started)
    if regions != [len(images) * REGIONS] * ITERATIONS:
        raise SystemExit(f"{contender}: expected {len(images) * REGIONS} regions in each iteration, found {regions}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"seconds": median(seconds[1:]), "memory": grown}))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found = {contender: [] for contender in ("stock", "trunk", "encoder")}
    for _ in range(rounds):
        for contender, rows in found.items():
            command = [sys.executable, __file__, "--contend", contender]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    middle = {name: {key: median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}
    for name, row in middle.items():
        print(f"{name:<8} {row['seconds']:.2f} CPU s an iteration, {row['memory']:.0f} MB at its peak")
    for name, (time_limit, memory_limit) in TARGETS.items():
        for key, limit in (("seconds", time_limit), ("memory", memory_limit)):
            ratio = middle[name][key] / middle["stock"][key]
            aim = f"(target {limit} or less)" if limit else ""
            print(f"{name} frozen, {key} against stock Detectron2   {ratio:.2f} x   {aim}".rstrip())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contend"]:
        warnings.simplefilter("ignore")
        contend(sys.argv[2])
    else:
        main()
