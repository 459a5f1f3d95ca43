"""Numbers of detectors are those of pycocotools and of the VOC devkit; their intervals those of sets resampled for real."""

import copy
import dataclasses
import itertools
import json

import numpy as np
import pytest

pytest.importorskip("pycocotools", reason="pycocotools is the oracle here; it comes with Detectron2 or ringbench[detection]")

from detection_cases import CASES, KEYPOINTS, case, oracle

from bench import registry
from imagesets import annotated
from ringbench.errors import RingbenchError, Unavailable, UsageError
from transfer.detection import evaluate as evaluation
from transfer.detection import matching
from transfer.detection.evaluate import KINDS, SUMMARY, evaluate, paired
from transfer.detection.predictions import results


@pytest.fixture(params=[True, False], ids=["ultrafast", "fallback"])
def evaluator(request, monkeypatch):
    """Both ways to the matches."""
    if request.param and not matching._is_proven():
        pytest.skip(f"{matching.FAST} {matching.PROVEN} is not installed")
    monkeypatch.setattr(matching, "_is_proven", lambda: request.param)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_the_one_of_pycocotools(kind, name, evaluator):
    for seed in range(2):
        split, predictions = case(name, seed)
        reference = oracle(split, predictions, kind)
        scores = evaluate(split, split.categories, predictions, kind, keypoints=KEYPOINTS, resamples=1)
        defined = {name: 100 * value for name, value in zip(SUMMARY[kind], reference.stats, strict=True) if value >= 0}
        assert {name: score["value"] for name, score in scores.metrics.items()} == pytest.approx(defined, abs=1e-10)
        precision = reference.eval["precision"][:, :, :, 0, -1].mean((0, 1))
        names = {category["id"]: category["name"] for category in split.categories}
        of_classes = {names[key]: 100 * p for key, p in zip(reference.params.catIds, precision, strict=True) if p >= 0}
        assert scores.per_class == pytest.approx(of_classes, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_evaluator_has_every_bit_of_pycocotools(kind, monkeypatch):
    if not matching._is_proven():
        pytest.skip(f"{matching.FAST} {matching.PROVEN} is not installed")
    for name in CASES:
        split, predictions = case(name)
        found, sigmas = results(split.coco(), predictions, kind, KEYPOINTS), list(KEYPOINTS.sigmas)
        both = []
        for proven in (True, False):
            monkeypatch.setattr(matching, "_is_proven", lambda proven=proven: proven)
            evaluation = matching.match(kind, copy.deepcopy(split.coco()), copy.deepcopy(found), sigmas)
            both.append((evaluation.curves, evaluation.matches()))
        (fast_curves, fast), (slow_curves, slow) = both
        for area in slow:
            np.testing.assert_array_equal(fast_curves[area].precision, slow_curves[area].precision, err_msg=f"{name} {area}")
            for field in dataclasses.fields(matching.Matches):
                mine, theirs = (getattr(matches[area], field.name) for matches in (fast, slow))
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{name} {area} {field.name}")


@pytest.mark.parametrize(("imageset", "kind"), [("coco", "bbox"), ("coco", "segm"), ("coco_person", "keypoints")])
def test_real_coco_images_give_the_numbers_of_pycocotools(imageset, kind, real_data, evaluator):
    images = annotated.load(registry.load().find("imagesets", imageset), real_data("coco_mini200"))
    split, predictions = images.splits["test"], guesses(images)
    scores = evaluate(split, split.categories, predictions, kind, keypoints=images.keypoints, resamples=1)
    reference = oracle(split, predictions, kind, images.keypoints and images.keypoints.sigmas)
    values = [scores.metrics[name]["value"] for name in SUMMARY[kind]]
    assert values == pytest.approx(100 * reference.stats, abs=1e-10) and 5 < values[0] < 95


def guesses(images: annotated.AnnotatedSet) -> list[dict]:
    """Most objects, somewhat moved, some with another class, and some boxes of nothing."""
    from pycocotools import mask

    rng, split = np.random.default_rng(0), images.splits["test"]
    sizes = {image["id"]: (image["height"], image["width"]) for image in split.images}
    predictions = []
    for truth in split.annotations:
        for _ in range(rng.integers(0, 4)):
            size = sizes[truth["image_id"]]
            moved = rng.normal(0, 0.08, 2) * truth["bbox"][2:]
            outline = truth["segmentation"]
            if isinstance(outline, list):
                outline = mask.merge(
                    mask.frPyObjects([(np.reshape(p, (-1, 2)) + moved).ravel().tolist() for p in outline], *size)
                )
            else:
                outline = mask.frPyObjects(outline, *size)
            points = np.reshape(truth.get("keypoints", []), (-1, 3)) + np.append(moved, 0)
            predictions.append(
                {
                    "image_id": truth["image_id"],
                    "category_id": truth["category_id"] if rng.random() < 0.9 else int(rng.choice(images.category_ids)),
                    "bbox": [*(np.array(truth["bbox"][:2]) + moved).tolist(), *truth["bbox"][2:]],
                    "segmentation": {"size": list(size), "counts": outline["counts"].decode()},
                    "keypoints": points.ravel().tolist(),
                    "score": float(rng.beta(3, 2)),
                }
            )
    return predictions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["plain", "crowd", "images_without_objects", "no_objects_of_a_class", "more_than_100", "few_keypoints"]
)
def test_a_resample_equals_a_set_in_which_images_really_occur_so_often(name, kind):
    split, predictions = case(name)
    weights = np.column_stack([np.ones(12, int), evaluation._weights(split, 6, seed=1)])
    found, _ = evaluation._samples(split, split.categories, predictions, kind, "coco", KEYPOINTS, weights)
    for column, times in enumerate([weights[:, 0], *weights.T]):  # the evaluator's own numbers, then ours
        stats = oracle(*repeated(split, predictions, times), kind).stats
        expected = {name: 100 * value if value >= 0 else np.nan for name, value in zip(SUMMARY[kind], stats, strict=True)}
        assert {name: values[column] for name, values in found.items()} == pytest.approx(expected, abs=1e-10, nan_ok=True)


def repeated(split: annotated.AnnotatedSplit, predictions: list[dict], times: np.ndarray):
    """The set that holds each image as often as `times` says, in the order of their ids."""
    images, annotations, found = [], [], []
    for image, n in sorted(zip(split.images, times, strict=True), key=lambda pair: pair[0]["id"]):
        for _ in range(n):
            key = len(images) + 1
            images.append({**image, "id": key})
            for truth in split.annotations:
                if truth["image_id"] == image["id"]:
                    annotations.append({**truth, "image_id": key, "id": len(annotations) + 1})
            found += [{**p, "image_id": key} for p in predictions if p["image_id"] == image["id"]]
    return annotated.AnnotatedSplit(images, annotations, split.categories), found


def difficult(name: str, seed: int = 0):
    split, predictions = case(name, seed)
    rng = np.random.default_rng(seed)
    for truth in split.annotations:
        truth |= {"difficult": int(rng.random() < 0.3), "iscrowd": 0}
    return split, predictions


def devkit(split: annotated.AnnotatedSplit, predictions: list[dict], kind: int, threshold: float) -> float:
    """11-point AP of one class, as VOCevaldet.m goes about it: detection by detection, counting pixels."""
    truths = [truth for truth in split.annotations if truth["category_id"] == kind]
    wanted = sum(not truth["difficult"] for truth in truths)
    taken, true, false, curve = set(), 0, 0, []
    for p in sorted((p for p in predictions if p["category_id"] == kind), key=lambda p: (-p["score"], p["image_id"])):
        best, overlap = None, -1.0
        for place, truth in enumerate(truths):
            if truth["image_id"] == p["image_id"]:
                (x, y, w, h), (a, b, c, d) = p["bbox"], truth["bbox"]  # the pixels x+1 .. x+w of the devkit
                left, right, top, bottom = max(x + 1, a + 1), min(x + w, a + c), max(y + 1, b + 1), min(y + h, b + d)
                if right - left + 1 > 0 and bottom - top + 1 > 0:
                    shared = (right - left + 1) * (bottom - top + 1)
                    if (iou := shared / (w * h + c * d - shared)) > overlap:
                        best, overlap = place, iou
        if overlap >= threshold:
            if truths[best]["difficult"]:
                continue
            true, false = (true, false + 1) if best in taken else (true + 1, false)
            taken.add(best)
        else:
            false += 1
        curve.append((true / wanted if wanted else np.nan, true / (true + false)))
    if not wanted:
        return np.nan
    return float(np.mean([max([p for r, p in curve if r >= t / 10], default=0) for t in range(11)]))


@pytest.mark.parametrize(
    "name", ["plain", "no_objects_of_a_class", "more_than_100", "no_predictions", "perfect", "same_box_twice", "unsorted_ids"]
)
def test_voc_numbers_are_those_of_the_devkit(name):
    split, predictions = difficult(name)
    scores = evaluate(split, split.categories, predictions, "bbox", style="voc", resamples=1)
    aps = np.array(
        [[devkit(split, predictions, c["id"], t) for t in matching.THRESHOLDS] for c in split.categories if has(split, c)]
    )
    assert scores.metrics["AP50_voc07"]["value"] == pytest.approx(100 * aps[:, 0].mean(), abs=1e-10)
    assert scores.metrics["AP75_voc07"]["value"] == pytest.approx(100 * aps[:, 5].mean(), abs=1e-10)
    assert scores.metrics["AP_voc07"]["value"] == pytest.approx(100 * aps.mean(), abs=1e-10)
    assert list(scores.per_class.values()) == pytest.approx(100 * aps[np.argsort(ids(split)), 0], abs=1e-10)


def has(split, category) -> bool:
    return any(truth["category_id"] == category["id"] and not truth["difficult"] for truth in split.annotations)


def ids(split) -> list[int]:
    return [category["id"] for category in split.categories if has(split, category)]


def test_voc_intervals_are_those_of_resampled_sets():
    split, predictions = difficult("plain")
    weights = evaluation._weights(split, 5, seed=2)
    found, _ = evaluation._samples(split, split.categories, predictions, "bbox", "voc", None, weights)
    for column, times in enumerate([np.ones(12, int), *weights.T]):
        copies = repeated(split, predictions, times)
        expected = np.nanmean([devkit(*copies, category["id"], 0.5) for category in split.categories])
        assert found["AP50_voc07"][column] == pytest.approx(100 * expected, abs=1e-10)


def test_difficult_objects_are_crowd_to_coco_and_left_as_they_were():
    split, predictions = difficult("plain")
    before = json.dumps([split.coco(), predictions])
    scores = evaluate(split, split.categories, predictions, "bbox", style="voc", resamples=1)
    assert json.dumps([split.coco(), predictions]) == before
    for truth in split.annotations:
        truth["iscrowd"] = truth["difficult"]
    assert scores.metrics["AP"]["value"] == pytest.approx(100 * oracle(split, predictions, "bbox").stats[0], abs=1e-10)


def test_perfect_predictions_score_100_with_an_interval_of_one_point():
    split, predictions = case("perfect")
    for kind in KINDS:
        scores = evaluate(split, split.categories, predictions, kind, keypoints=KEYPOINTS, resamples=50)
        assert scores.metrics["AP50"] == pytest.approx({"value": 100, "ci_low": 100, "ci_high": 100, "n": 12})


def test_intervals_hold_the_value_follow_the_seed_and_shrink_with_more_images():
    split, predictions = case("plain")
    call = {"predictions": predictions, "kind": "bbox", "categories": split.categories}
    first, again, other = (evaluate(split, **call, seed=seed).metrics for seed in (0, 0, 1))
    assert first == again != other
    many, found = repeated(split, predictions, np.full(12, 9))
    rng = np.random.default_rng(0)
    for p in found:  # so that the copies are no copies
        p["score"] = float(rng.random())
    wide = evaluate(many, many.categories, found, "bbox").metrics
    few, found = repeated(many, found, (np.arange(108) % 9 == 0).astype(int))
    narrow = wide
    wide = evaluate(few, few.categories, found, "bbox").metrics
    for metric in ("AP", "AP50", "AR100"):
        assert first[metric]["ci_low"] <= first[metric]["value"] <= first[metric]["ci_high"]
        assert narrow[metric]["ci_high"] - narrow[metric]["ci_low"] < 0.6 * (wide[metric]["ci_high"] - wide[metric]["ci_low"])


def test_paired_differences_are_zero_for_equal_predictions_and_certain_where_every_image_is_better():
    split, predictions = case("plain")
    same = paired(split, split.categories, predictions, predictions, "bbox")
    assert all(score["value"] == score["ci_low"] == score["ci_high"] == 0 for score in same.values())
    perfect = [
        {"image_id": t["image_id"], "category_id": t["category_id"], "bbox": t["bbox"], "score": 0.5} for t in split.annotations
    ]
    better = paired(split, split.categories, predictions, perfect, "bbox")["AP"]
    alone = evaluate(split, split.categories, predictions, "bbox").metrics["AP"]
    assert better["value"] == pytest.approx(100 - alone["value"]) and 0 < better["ci_low"] < better["value"] < better["ci_high"]


def with_first(predictions: list[dict], **changes) -> list[dict]:
    return [{**predictions[0], **changes}, *predictions[1:]]


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("bbox", {"image_id": 999}, "image 999, which the test split does not have"),
        ("bbox", {"category_id": 0}, "category 0, which the test split does not have"),
        ("bbox", {"score": float("nan")}, "score or bbox that is not finite"),
        ("bbox", {"bbox": [1, 2, float("inf"), 3]}, "score or bbox that is not finite"),
        ("bbox", {"bbox": [1, 2, 3]}, "has \\[1, 2, 3\\] as bbox; expected 4 numbers"),
        ("bbox", {"bbox": None}, "has None as bbox; expected 4 numbers"),
        ("bbox", {"bbox": [1, 2, [3], 4]}, "as bbox; expected 4 numbers"),
        ("bbox", {"bbox": [1, 2, "3", 4]}, "as bbox; expected 4 numbers"),
        ("bbox", {"score": "high"}, "has \\('high',\\) as score; expected 1 number$"),
        ("bbox", {"score": None}, "as score; expected 1 number$"),
        ("bbox", {"image_id": 1.5}, "as image_id and category_id; expected 2 whole numbers"),
        ("bbox", {"image_id": [1]}, "as image_id and category_id; expected 2 whole numbers"),
        ("bbox", {"category_id": "cat"}, "as image_id and category_id; expected 2 whole numbers"),
        ("bbox", {"category_id": 10**30}, "as image_id and category_id; expected 2 whole numbers"),
        ("segm", {"segmentation": {"size": None, "counts": "9"}}, "no RLE of its size"),
        ("segm", {"segmentation": {"size": [3, 3], "counts": "9"}}, r"no RLE of its size \[200, 200\]"),
        ("segm", {"segmentation": [[1, 1, 5, 1, 5, 5]]}, "no RLE of its size"),
        ("keypoints", {"keypoints": [1, 2, 3]}, "has \\[1, 2, 3\\] as keypoints; expected 15 numbers"),
    ],
)
def test_predictions_that_cannot_be_meant_are_refused_in_a_sentence(kind, changes, sentence):
    split, predictions = case("plain")
    with pytest.raises(RingbenchError, match=sentence):
        evaluate(split, split.categories, with_first(predictions, **changes), kind, keypoints=KEYPOINTS)


def test_predictions_and_objects_without_what_is_evaluated_are_refused():
    split, predictions = case("plain")
    with pytest.raises(RingbenchError, match="a prediction lacks 'segmentation'"):
        evaluate(split, split.categories, [{k: v for k, v in p.items() if k != "segmentation"} for p in predictions], "segm")
    for truth in itertools.islice(split.annotations, 3):
        del truth["segmentation"]
    with pytest.raises(RingbenchError, match=rf"3 of {len(split.annotations)} annotations have no mask"):
        evaluate(split, split.categories, predictions, "segm")
    with pytest.raises(UsageError, match="needs their sigmas"):
        evaluate(split, split.categories, predictions, "keypoints")
    with pytest.raises(UsageError, match=r"unknown kind 'box'.*bbox, segm, keypoints"):
        evaluate(split, split.categories, predictions, "box")


def test_without_an_evaluator_the_sentence_says_what_to_install(monkeypatch):
    split, predictions = case("plain")
    monkeypatch.setattr(matching, "_is_proven", lambda: False)
    monkeypatch.setitem(__import__("sys").modules, "pycocotools.coco", None)
    with pytest.raises(Unavailable, match=r"pip install 'ringbench\[detection\]'"):
        evaluate(split, split.categories, predictions, "bbox")
