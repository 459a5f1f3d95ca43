"""Metrics against scikit-learn and scipy, ties, groups and nonsense."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, top_k_accuracy_score

from ringbench.errors import RingbenchError, UsageError
from transfer.metrics import evaluate


def example(n: int = 300, n_classes: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(n_classes, n, p=np.arange(1, n_classes + 1) / np.arange(1, n_classes + 1).sum())
    return (rng.normal(size=(n, n_classes)) + 1.2 * np.eye(n_classes)[y]).astype(np.float32), y


@pytest.mark.parametrize("n_classes", [6, 8, 40])
def test_values_are_those_of_scikit_learn(n_classes: int) -> None:
    scores, y = example(n=2000, n_classes=n_classes)
    found = evaluate(scores, y, n_classes)
    assert found["top1"]["value"] == pytest.approx(100 * accuracy_score(y, scores.argmax(1)))
    assert found["top5"]["value"] == pytest.approx(100 * top_k_accuracy_score(y, scores, k=5, labels=range(n_classes)))
    assert found["mean_per_class"]["value"] == pytest.approx(100 * balanced_accuracy_score(y, scores.argmax(1)))
    assert all(metric["n"] == len(y) for metric in found.values())


@pytest.mark.parametrize("n_classes", [2, 5])
def test_top5_is_left_out_where_it_says_nothing(n_classes: int) -> None:
    assert set(evaluate(*example(n_classes=n_classes), n_classes)) == {"top1", "mean_per_class"}


def test_constant_scores_earn_nothing() -> None:
    found = evaluate(np.zeros((100, 10), np.float32), np.arange(100) % 10, 10)
    assert [found[metric]["value"] for metric in ("top1", "top5", "mean_per_class")] == [0, 0, 0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_a_tied_score_takes_the_last_of_the_ranks_it_shares(seed: int, n_classes: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (40, n_classes)).astype(np.float32)
    y = rng.integers(0, n_classes, 40)
    rank = scipy.stats.rankdata(-scores, method="max", axis=1)[np.arange(40), y]
    found = evaluate(scores, y, n_classes, resamples=2)
    assert found["top1"]["value"] == pytest.approx(100 * (rank == 1).mean())
    if n_classes > 5:
        assert found["top5"]["value"] == pytest.approx(100 * (rank <= 5).mean())


def test_a_class_that_is_never_seen_may_have_an_infinitely_low_score() -> None:
    scores, y = example()
    scores[:, 0], y[y == 0] = -np.inf, 1
    assert evaluate(scores, y, 8)["top1"]["value"] == pytest.approx(100 * (scores.argmax(1) == y).mean())


def test_classes_without_images_do_not_enter_the_mean_per_class() -> None:
    scores, y = example(n_classes=6)
    padded = np.concatenate([scores, np.full((len(y), 30), -9, np.float32)], 1)
    assert evaluate(padded, y, 36)["mean_per_class"]["value"] == evaluate(scores, y, 6)["mean_per_class"]["value"]


@pytest.mark.parametrize(("metric", "index"), [("top1", 0), ("mean_per_class", 1)])
def test_intervals_are_those_of_scipys_bootstrap(metric: str, index: int) -> None:
    scores, y = example(n=150, n_classes=6)
    right = scores.argmax(1) == y

    def statistic(right: np.ndarray, y: np.ndarray) -> float:
        if index == 0:
            return right.mean()
        return np.mean([right[y == c].mean() for c in np.unique(y)])

    oracle = scipy.stats.bootstrap(
        (right, y), statistic, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    )
    found = evaluate(scores, y, 6, resamples=20000)[metric]
    width = oracle.confidence_interval.high - oracle.confidence_interval.low
    assert found["ci_low"] / 100 == pytest.approx(oracle.confidence_interval.low, abs=0.1 * width)
    assert found["ci_high"] / 100 == pytest.approx(oracle.confidence_interval.high, abs=0.1 * width)


def test_the_interval_covers_the_true_accuracy_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(400):
        y = np.zeros(200, int)
        found = evaluate(np.where(rng.random((200, 1)) < 0.7, [[1.0, 0.0]], [[0.0, 1.0]]), y, 2, seed=seed, resamples=300)["top1"]
        covered += found["ci_low"] <= 70 <= found["ci_high"]
    assert 0.92 <= covered / 400 <= 0.98


def test_groups_of_one_image_give_the_interval_over_images() -> None:
    scores, y = example()
    alone = evaluate(scores, y, 8, resamples=20000)["top1"]
    grouped = evaluate(scores, y, 8, groups=np.arange(len(y)), resamples=4000)["top1"]
    assert grouped["ci_low"] == pytest.approx(alone["ci_low"], abs=0.7)
    assert grouped["ci_high"] == pytest.approx(alone["ci_high"], abs=0.7)


def test_an_interval_over_groups_does_not_narrow_when_every_image_is_repeated() -> None:
    scores, y = example(n=100)
    group = np.array([f"track {i}" for i in range(100)])
    once = evaluate(scores, y, 8, groups=group, resamples=4000)["top1"]
    repeated = evaluate(np.repeat(scores, 9, 0), np.repeat(y, 9), 8, groups=np.repeat(group, 9), resamples=4000)["top1"]
    assert repeated["ci_low"] == pytest.approx(once["ci_low"], abs=1)
    assert repeated["ci_high"] == pytest.approx(once["ci_high"], abs=1)
    assert repeated["n"] == 900


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    scores, y = example()
    assert evaluate(scores, y, 8, seed=3) == evaluate(scores, y, 8, seed=3)
    assert evaluate(scores, y, 8, seed=3)["mean_per_class"] != evaluate(scores, y, 8, seed=4)["mean_per_class"]


def test_one_image_has_an_interval() -> None:
    found = evaluate(np.eye(8, dtype=np.float32)[:1], np.array([0]), 8)
    assert found["mean_per_class"] == {"value": 100, "ci_low": 100, "ci_high": 100, "n": 1}


def test_nan_scores_are_an_error_and_never_a_number() -> None:
    scores, y = example()
    scores[7, 3] = np.nan
    with pytest.raises(RingbenchError, match="1 of 300 images hold NaN"):
        evaluate(scores, y, 8)


@pytest.mark.parametrize(("rows", "labels", "n_classes"), [(0, 0, 8), (300, 299, 8), (300, 300, 7)])
def test_arrays_that_do_not_belong_together_are_refused(rows: int, labels: int, n_classes: int) -> None:
    scores, y = example()
    with pytest.raises(UsageError, match="found"):
        evaluate(scores[:rows], y[:labels], n_classes)


def test_a_group_label_for_every_image_is_required() -> None:
    with pytest.raises(UsageError, match="299 group labels for 300 images"):
        evaluate(*example(), 8, groups=np.zeros(299, int))


@pytest.mark.parametrize("label", [-1, 8])
def test_labels_outside_the_classes_are_refused(label: int) -> None:
    scores, y = example()
    y[0] = label
    with pytest.raises(UsageError, match="labels"):
        evaluate(scores, y, 8)
