"""The kNN probe against brute force and scikit-learn; blocks, ties, zero vectors and memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from ringbench.errors import RingbenchError
from transfer.probes import knn, rows
from transfer.probes.knn import KNNProbe


def example(n: int = 400, d: int = 16, n_classes: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    centres = np.random.default_rng(99).normal(size=(n_classes, d))
    return (rng.normal(size=(n, d)) + 0.7 * centres[y]).astype(np.float32), y


def brute_force(bank: np.ndarray, labels: np.ndarray, X: np.ndarray, k: int, temperature: float, n_classes: int) -> np.ndarray:
    """Votes in float64, straight from the definition, with all similarities at once."""
    bank, X = (a.astype(np.float64) / np.linalg.norm(a.astype(np.float64), axis=1, keepdims=True) for a in (bank, X))
    similarity = X @ bank.T
    votes = np.zeros((len(X), n_classes))
    for i, row in enumerate(similarity):
        for j in np.argsort(-row)[:k]:
            votes[i, labels[j]] += np.exp((row[j] - row.max()) / temperature)
    return votes


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (10, 0.07), (10, 0.01), (200, 1.0)])
def test_scores_are_those_of_the_definition(k: int, temperature: float, dtype: type) -> None:
    (X, y), (X_val, y_val), (X_test, _) = (example(seed=s) for s in range(3))
    X, X_val, X_test = (a.astype(dtype) for a in (X, X_val, X_test))
    probe = KNNProbe(k=(k,), temperature=temperature).fit(X, y, X_val, y_val, n_classes=9)
    bank, labels = np.concatenate([X, X_val]), np.concatenate([y, y_val])
    expected = brute_force(bank, labels, X_test, k, temperature, 9)
    np.testing.assert_allclose(probe.scores(X_test), expected, rtol=1e-3, atol=1e-4)
    assert (probe.predict(X_test) == expected.argmax(1)).mean() > 0.99


def test_predictions_are_those_of_scikit_learn() -> None:
    (X, y), (X_val, y_val), (X_test, _) = (example(seed=s) for s in range(3))
    oracle = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    oracle.fit(np.concatenate([X, X_val]), np.concatenate([y, y_val]))
    assert (KNNProbe(k=(20,)).fit(X, y, X_val, y_val).predict(X_test) == oracle.predict(X_test)).mean() > 0.99


def test_blocks_give_the_same_answer_as_all_similarities_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (X, y), (X_val, y_val), (X_test, _) = (example(seed=s) for s in range(3))
    dense = KNNProbe().fit(X, y, X_val, y_val)
    monkeypatch.setattr(knn, "BANK_BLOCK", 33)
    monkeypatch.setattr(rows, "BLOCK", 16 * 50)
    blocked = KNNProbe().fit(X, y, X_val, y_val)
    assert dense.report == blocked.report
    np.testing.assert_allclose(blocked.scores(X_test), dense.scores(X_test), rtol=1e-4, atol=1e-5)


def test_a_bank_on_disk_that_does_not_fit_gives_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (X, y), (X_val, y_val), (X_test, _) = (example(seed=s) for s in range(3))
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(rows, "_budget", lambda device: 0)
    mapped = KNNProbe().fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y, X_val, y_val)
    np.testing.assert_array_equal(mapped.scores(X_test), KNNProbe().fit(X, y, X_val, y_val).scores(X_test))


def test_k_is_the_best_on_validation_and_of_equals_the_smallest() -> None:
    (X, y), (X_val, y_val) = (example(seed=s) for s in range(2))
    grid = (1, 3, 10, 30, 100)
    report = KNNProbe(k=grid).fit(X, y, X_val, y_val).report
    expected = [100 * (brute_force(X, y, X_val, k, 0.07, 7).argmax(1) == y_val).mean() for k in grid]
    np.testing.assert_allclose(report["val_scores"], expected, atol=0.6)
    assert report["grid"] == list(grid)
    assert report["selected"] == {"k": grid[int(np.argmax(report["val_scores"]))], "temperature": 0.07}
    assert report["selected_on"] == "val"


def test_of_equally_good_k_the_smallest_is_taken() -> None:
    X = np.eye(4, dtype=np.float32).repeat(5, 0)
    y = np.arange(4).repeat(5)
    assert KNNProbe(k=(5, 3, 4)).fit(X, y, X, y).report["selected"]["k"] == 3


def test_the_final_bank_holds_train_and_validation() -> None:
    (X, y), (X_val, y_val) = (example(seed=s) for s in range(2))
    noise = np.random.default_rng(5).integers(0, 7, len(y_val))
    probe = KNNProbe(k=(1,)).fit(X, y, X_val, noise)
    np.testing.assert_array_equal(probe.predict(X_val), noise)


def test_a_k_beyond_the_bank_is_clipped_and_said() -> None:
    (X, y), (X_val, y_val) = (example(n=15, seed=s) for s in range(2))
    report = KNNProbe().fit(X, y, X_val, y_val).report
    assert report["grid"] == [10, 15]
    assert any("clipped" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("k", "n", "edge"),
    [((1, 2), 6, False), ((2, 4), 400, True), ((5,), 400, False), ((399, 400), 400, True)],
)
def test_the_edge_of_the_grid_is_flagged_where_the_grid_could_go_on(k: tuple[int, ...], n: int, edge: bool) -> None:
    X = np.ones((n, 3), np.float32)
    y = np.zeros(n, int)
    report = KNNProbe(k=k).fit(X, y, X[:5], y[:5]).report
    assert report["grid_edge"] is edge
    assert any("edge" in note for note in report["notes"]) is edge


@pytest.mark.parametrize(("k", "edge"), [((1, 50), True), ((1, 1000), False)])
def test_a_largest_k_is_an_edge_unless_it_is_the_whole_bank(k: tuple[int, ...], edge: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 16)).astype(np.float32), (rng.random(400) < 0.2).astype(int)
    report = KNNProbe(k=k).fit(X[:200], y[:200], X[200:], y[200:]).report
    assert report["selected"]["k"] == min(k[1], 200)
    assert report["grid_edge"] is edge


@pytest.mark.parametrize("temperature", [1e-6, 0.01, 0.07])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_zero_vectors_and_tiny_temperatures_give_finite_votes(temperature: float, dtype: type) -> None:
    X, y = example()
    X[:20] = 0
    X[20:40] = 6e4
    X = X.astype(dtype)
    scores = KNNProbe(temperature=temperature).fit(X, y, X[:50], y[:50]).scores(X[:50])
    assert np.isfinite(scores).all()
    assert (scores.max(1) > 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["train", "validation", "test"])
def test_features_that_are_not_finite_are_an_error(where: str, value: float) -> None:
    X, y = example()
    arrays = {name: X.copy() for name in ("train", "validation", "test")}
    arrays[where][3, 3] = value
    with pytest.raises(RingbenchError, match="NaN or infinity"):
        KNNProbe().fit(arrays["train"], y, arrays["validation"], y).scores(arrays["test"])


def test_a_class_that_is_absent_gets_no_vote() -> None:
    X, y = example()
    scores = KNNProbe().fit(X[y != 2], y[y != 2], X[y != 2], y[y != 2], n_classes=7).scores(X)
    assert scores.shape == (400, 7)
    assert (scores[:, 2] == 0).all()


def test_progress_counts_the_validation_images(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(rows, "BLOCK", 16 * 150)
    X, y = example()
    KNNProbe(progress=lambda done, total: told.append((done, total))).fit(X, y, X, y)
    assert told == [(150, 400), (300, 400), (400, 400)]


MEMORY = """
import resource, sys
import numpy as np
from transfer.probes.knn import KNNProbe
rng = np.random.default_rng(0)
X, y = rng.normal(size=(60_000, 8)).astype(np.float16), rng.integers(0, 5, 60_000)
probe = KNNProbe(k=(5,)).fit(X, y, X[:50], y[:50])
probe.scores(X[:10])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
probe.scores(X[:4000])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // (1 if sys.platform == "linux" else 1024))
"""


def test_memory_does_not_grow_with_the_bank() -> None:
    root = Path(knn.__file__).parents[2]
    grown = int(subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=True).stdout)
    assert grown < 400 * 1024, "KiB; all similarities at once take 940 MiB"
