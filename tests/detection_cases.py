"""Small detection sets that are hard to evaluate, made by a seed: each has boxes, masks and keypoints, and predictions of all."""

import copy
import io
from contextlib import redirect_stdout

import numpy as np
from numpy.random import Generator

from imagesets.annotated import AnnotatedSplit, Keypoints

SIZE = 200
KEYPOINTS = Keypoints(("a", "b", "c", "d", "e"), (("b", "c"),), (0.03, 0.05, 0.07, 0.1, 0.02))
CASES = (
    "plain", "crowd", "ties", "no_objects_of_a_class", "images_without_objects", "more_than_100", "no_predictions",
    "one_prediction", "only_false", "zero_area", "outside", "perfect", "few_keypoints", "unsorted_ids", "one_image",
    "every_object_crowd_but_one", "same_box_twice",
)  # fmt: skip


def case(name: str, seed: int = 0) -> tuple[AnnotatedSplit, list[dict]]:
    rng = np.random.default_rng([CASES.index(name), seed])
    n_images = 1 if name == "one_image" else 12
    classes = [7, 3, 11] if name == "unsorted_ids" else [1, 2, 3]
    ids = rng.permutation(500)[:n_images].tolist() if name == "unsorted_ids" else list(range(1, n_images + 1))
    images = [{"id": i, "height": SIZE, "width": SIZE, "file_name": f"{i}.jpg"} for i in ids]
    annotations: list[dict] = []
    predictions: list[dict] = []
    for i in ids:
        count = 0 if name == "images_without_objects" and rng.random() < 0.5 else int(rng.integers(1, 9))
        objects = [_object(rng, i, classes, name) for _ in range(count)]
        annotations += objects
        predictions += _found(rng, i, classes, objects, name)
    if name == "every_object_crowd_but_one":
        for truth in annotations[1:]:
            truth["iscrowd"] = 1
    for number, truth in enumerate(annotations, 1):
        truth["id"] = number
    if name == "no_predictions":
        predictions = []
    if name == "one_prediction":
        predictions = predictions[:1]
    categories = [{"id": c, "name": f"class {c}"} for c in classes]
    return AnnotatedSplit(images, annotations, categories), predictions


def _object(rng: Generator, image: int, classes: list[int], name: str) -> dict:
    size = np.exp(rng.uniform(np.log(8), np.log(150), 2))
    corner = rng.uniform(-20 if name == "outside" else 0, (SIZE - size).clip(1))
    if name == "zero_area" and rng.random() < 0.3:
        size[rng.integers(2)] = 0
    kinds = classes[:-1] if name == "no_objects_of_a_class" else classes
    truth = _shapes(rng, corner, size, visible=0.5 if name == "few_keypoints" else 0.9)
    return {
        "image_id": image,
        "category_id": int(rng.choice(kinds)),
        "iscrowd": int(name == "crowd" and rng.random() < 0.3),
        "area": float(size.prod() * rng.uniform(0.5, 1)),
        **truth,
    }


def _shapes(rng: Generator, corner: np.ndarray, size: np.ndarray, visible: float) -> dict:
    """A box, an octagon in it, and five keypoints."""
    turns = np.arange(8) * np.pi / 4
    outline = corner + size * (0.5 + 0.5 * np.stack([np.cos(turns), np.sin(turns)], 1))
    seen = rng.random(5) < visible
    points = corner + size * rng.uniform(0, 1, (5, 2))
    keypoints = np.column_stack([np.rint(points) * seen[:, None], 2 * seen])
    return {
        "bbox": [round(float(v), 2) for v in (*corner, *size)],
        "segmentation": [[round(float(v), 2) for v in outline.ravel()]],
        "keypoints": [int(v) for v in keypoints.ravel()],
        "num_keypoints": int(seen.sum()),
    }


def _found(rng: Generator, image: int, classes: list[int], objects: list[dict], name: str) -> list[dict]:
    predictions = []
    for truth in objects if name != "only_false" else ():
        for _ in range(1 if name == "perfect" else int(rng.integers(0, 3))):
            near = 0.0 if name == "perfect" else rng.choice([0.02, 0.1, 0.3])
            box = np.array(truth["bbox"])
            box = box + near * rng.normal(size=4) * np.tile(box[2:], 2)
            predictions.append(_prediction(rng, image, truth["category_id"], box, truth["keypoints"], name))
            if name == "same_box_twice":
                predictions.append({**copy.deepcopy(predictions[-1]), "score": float(rng.random())})
    for _ in range(130 if name == "more_than_100" else int(rng.integers(0, 5)) * (name != "perfect")):
        box = np.concatenate([rng.uniform(0, 150, 2), rng.uniform(4, 100, 2)])
        kind = classes[0] if name == "more_than_100" else int(rng.choice(classes))
        predictions.append(_prediction(rng, image, kind, box, None, name))
    return predictions


def _prediction(rng: Generator, image: int, kind: int, box: np.ndarray, keypoints: list[int] | None, name: str) -> dict:
    from pycocotools import mask

    box = np.concatenate([box[:2], box[2:].clip(0.5)])
    turns = np.arange(8) * np.pi / 4
    outline = box[:2] + box[2:] * (0.5 + 0.5 * np.stack([np.cos(turns), np.sin(turns)], 1))
    rle = mask.frPyObjects([outline.ravel().tolist()], SIZE, SIZE)[0]
    points = np.array(keypoints, float).reshape(5, 3) if keypoints else np.zeros((5, 3))
    points[:, :2] = np.where(points[:, 2:] > 0, points[:, :2], box[:2] + box[2:] * rng.random((5, 2)))
    points[:, :2] += 0 if name == "perfect" else rng.normal(size=(5, 2)) * 0.05 * box[2:]
    points[:, 2] = 1
    score = rng.choice([0.25, 0.5, 0.75]) if name == "ties" else rng.random()
    return {
        "image_id": image,
        "category_id": kind,
        "bbox": [float(v) for v in box],
        "segmentation": {"size": [SIZE, SIZE], "counts": rle["counts"].decode()},
        "keypoints": [float(v) for v in points.ravel()],
        "score": float(score),
    }


def oracle(split: AnnotatedSplit, predictions: list[dict], kind: str, sigmas: tuple[float, ...] = KEYPOINTS.sigmas):
    """pycocotools' evaluation, after `summarize`."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    field = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}[kind]
    with redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = copy.deepcopy(split.coco())
        truth.createIndex()
        if predictions:
            keys = ("image_id", "category_id", field, "score")
            found = truth.loadRes([{key: copy.deepcopy(p[key]) for key in keys} for p in predictions])
        else:
            found = COCO()
            found.dataset = {**truth.dataset, "annotations": []}
            found.createIndex()
        evaluation = COCOeval(truth, found, kind)
        if kind == "keypoints":
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation
