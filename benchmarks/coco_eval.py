"""Evaluating detections against pycocotools in one run: load, match and summarise; and what 1,000 resamples add to it.

    python benchmarks/coco_eval.py [SHARE]

The sets are synthetic: 5,000 images with 100 boxes each and 80 classes, 1,000 with 30 masks, 2,000 with 20 persons; SHARE makes
them smaller. pycocotools goes image by image, so it is timed on a part of them and the time multiplied. Times are CPU seconds of
all threads: other work on the machine then changes the ratios little.
"""

import copy
import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

import numpy as np
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from imagesets.annotated import AnnotatedSplit, Keypoints
from transfer.detection import matching
from transfer.detection.evaluate import evaluate

HEIGHT, WIDTH = 480, 640
SETS = {"bbox": (5000, 100, 80, 20), "segm": (1000, 30, 80, 5), "keypoints": (2000, 20, 1, 1)}  # images, found, classes, parts
TARGETS = {"bbox": 30, "segm": 5, "keypoints": 5}  # times pycocotools
RESAMPLES, TARGET = 1000, 20  # times one evaluation
PERSON = Keypoints(tuple("abcdefghijklmnopq"), (), tuple(COCOeval(iouType="keypoints").params.kpt_oks_sigmas.tolist()))
TURNS = np.arange(12) * np.pi / 6
CIRCLE = 0.5 + 0.5 * np.stack([np.cos(TURNS), np.sin(TURNS)], 1)


def made(kind: str, n_images: int, found: int, n_classes: int) -> tuple[AnnotatedSplit, list[dict]]:
    """About seven objects an image, each found several times more or less well, among boxes of nothing."""
    rng = np.random.default_rng(0)
    images = [{"id": i, "height": HEIGHT, "width": WIDTH, "file_name": ""} for i in range(1, n_images + 1)]
    annotations, predictions = [], []
    for image in images:
        n = int(rng.integers(1, 14))
        boxes, classes = random_boxes(rng, n), rng.choice(rng.integers(1, n_classes + 1, 4), n)
        for box, kind_of in zip(boxes, classes, strict=True):
            truth = {"id": len(annotations) + 1, "image_id": image["id"], "category_id": int(kind_of), "bbox": box.tolist()}
            truth |= {"area": float(0.7 * box[2:].prod()), "iscrowd": int(rng.random() < 0.01)}
            annotations.append(truth | outline(kind, box, rng))
        owner = np.arange(found) % (2 * n)  # beyond n: of nothing
        near = np.where((owner < n)[:, None], boxes[owner % n], random_boxes(rng, found))
        near = near + rng.normal(0, 0.1, (found, 4)) * np.tile(near[:, 2:], 2)
        near[:, 2:] = near[:, 2:].clip(2)
        for box, place, score in zip(near, owner, rng.random(found), strict=True):
            p = {"image_id": image["id"], "category_id": int(classes[place % n]), "score": float(score)}
            predictions.append(p | {"bbox": box.tolist()} | compressed(outline(kind, box, rng)))
    categories = [{"id": k, "name": f"class {k}"} for k in range(1, n_classes + 1)]
    return AnnotatedSplit(images, annotations, categories), predictions


def random_boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    size = np.exp(rng.uniform(np.log(12), np.log(250), (n, 2)))
    return np.hstack([rng.uniform(0, 1, (n, 2)) * ([WIDTH, HEIGHT] - size), size]).round(2)


def outline(kind: str, box: np.ndarray, rng: np.random.Generator) -> dict:
    if kind == "segm":
        return {"segmentation": [(box[:2] + CIRCLE * box[2:]).ravel().tolist()]}
    if kind == "keypoints":
        points = box[:2] + np.linspace(0, 1, 17)[:, None] * box[2:] + rng.normal(0, 2, (17, 2))
        return {"keypoints": np.column_stack([points, np.full(17, 2)]).ravel().tolist(), "num_keypoints": 17}
    return {}


def compressed(shape: dict) -> dict:
    if "segmentation" in shape:
        rle = mask.frPyObjects(shape["segmentation"], HEIGHT, WIDTH)[0]
        return {"segmentation": {"size": [HEIGHT, WIDTH], "counts": rle["counts"].decode()}}
    return {"keypoints": shape["keypoints"]} if "keypoints" in shape else {}


def by_pycocotools(split: AnnotatedSplit, predictions: list[dict], kind: str) -> np.ndarray:
    with redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = split.coco()
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(predictions), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * evaluation.stats


def part_of(split: AnnotatedSplit, predictions: list[dict], parts: int) -> tuple[AnnotatedSplit, list[dict]]:
    last = len(split.images) // parts
    images, annotations = split.images[:last], [truth for truth in split.annotations if truth["image_id"] <= last]
    return AnnotatedSplit(images, annotations, split.categories), [p for p in predictions if p["image_id"] <= last]


def seconds(action: Callable, *arguments, **options) -> tuple[float, object]:
    started = time.process_time()
    outcome = action(*arguments, **options)
    return time.process_time() - started, outcome


def main(share: float) -> None:
    proven = f"{matching.FAST} {matching.PROVEN}" if matching._is_proven() else "pycocotools, which is no comparison"
    print(f"evaluate: matches by {proven}")
    for kind, (n_images, found, n_classes, parts) in SETS.items():
        split, predictions = made(kind, round(n_images * share), found, n_classes)
        options = {"keypoints": PERSON} if kind == "keypoints" else {}
        few = part_of(split, predictions, parts)
        needed = [{key: value for key, value in p.items() if key != "bbox" or kind == "bbox"} for p in few[1]]
        theirs, stats = seconds(by_pycocotools, *copy.deepcopy((few[0], needed)), kind)
        evaluate(split, split.categories, predictions[:1], kind, **options, resamples=0)  # so that all is imported
        mine, _ = seconds(evaluate, split, split.categories, predictions, kind, **options, resamples=0)
        whole, _ = seconds(evaluate, split, split.categories, predictions, kind, **options, resamples=RESAMPLES)
        small = evaluate(few[0], split.categories, few[1], kind, **options, resamples=0).metrics
        apart = max(abs(score["value"] - value) for score, value in zip(small.values(), stats[stats >= 0], strict=True))
        print(
            f"{kind:<10}{len(split.images)} images, {len(predictions)} predictions: pycocotools {theirs * parts:.1f} s"
            f"{f' ({theirs:.1f} s for 1/{parts})' if parts > 1 else ''}, evaluate {mine:.2f} s: {theirs * parts / mine:.0f} x "
            f"(target {TARGETS[kind]} x), numbers apart by {apart:.0e}; {RESAMPLES} resamples add "
            f"{(whole - mine) / mine:.1f} x one evaluation (target {TARGET} x)",
            flush=True,
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 1.0)
