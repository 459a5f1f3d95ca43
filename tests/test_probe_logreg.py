"""The logistic regression probe against float64 scipy and scikit-learn, and its conduct on difficult features."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ringbench.errors import RingbenchError
from transfer.probes import basis, logreg, rows, softmax_regression
from transfer.probes.basis import Basis
from transfer.probes.logreg import LogregProbe
from transfer.probes.softmax_regression import Problem, path

TOL = LogregProbe().tol
GRID = np.geomspace(1e5, 1e-6, 9)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices here are tiny: on a busy machine threads wait for each other far longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


def example(
    n: int = 120, d: int = 8, n_classes: int = 4, *, seed: int = 0, signal: float = 0.8
) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features of unequal variance; every class occurs."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    y = np.arange(n) % n_classes
    mix = fixed.normal(size=(d, d)) * (np.arange(1, d + 1) ** -0.7)[:, None]
    return ((rng.normal(size=(n, d)) + signal * fixed.normal(size=(n_classes, d))[y]) @ mix).astype(np.float32), y


def hard(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = example()
    match name:
        case "plain":
            return X, y
        case "two classes":
            return X, y % 2
        case "many classes":
            return example(n=150, n_classes=15)
        case "more features than images":
            return example(n=60, d=100)
        case "constant features":
            X[:, 3], X[:, 5] = 0, 1234.567
            return X, y
        case "equal features":
            X[:, 3] = X[:, 5]
            return X, y
        case "huge scales":
            return X * np.float32(10.0) ** np.arange(-12, 12, 3, dtype=np.float32) + np.float32(10.0), y
        case "rare class":
            kept = (y != 1) | (np.arange(len(y)) < 9)
            return X[kept], y[kept]
        case "separable":
            return example(signal=20)
        case "outlier":
            X[0] *= 1000
            return X, y
    raise ValueError(name)


HARD = [
    "plain",
    "two classes",
    "many classes",
    "more features than images",
    "constant features",
    "equal features",
    "huge scales",
    "rare class",
    "separable",
    "outlier",
]


def standardised(X: np.ndarray) -> np.ndarray:
    return StandardScaler().fit_transform(X.astype(np.float64))


def objective(W: np.ndarray, b: np.ndarray, X: np.ndarray, y: np.ndarray, l2: float) -> float:
    logits = X @ W.T + b
    losses = scipy.special.logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]
    return (losses.sum() + l2 / 2 * (W**2).sum()) / len(y)


def along_the_grid(X: np.ndarray, y: np.ndarray, tol: float = TOL) -> list[tuple[float, np.ndarray, np.ndarray, bool]]:
    """(l2, W, b, converged) of the probe's own path, on standardised features."""
    axes = Basis([X], "cpu")
    problem = Problem(axes.rotated([X]), axes.variance, torch.from_numpy(y), int(y.max()) + 1)
    solutions = []
    for W, converged in path(problem, torch.tensor(GRID, dtype=torch.float32), tol, 5000):
        solutions += [(*(part.double().numpy() for part in axes.weights(w)), bool(c)) for w, c in zip(W, converged, strict=True)]
    return [(l2, *solution) for l2, solution in zip(GRID, solutions, strict=True)]


@pytest.mark.parametrize("name", HARD)
def test_the_objective_is_the_minimum_that_float64_scipy_finds_at_every_penalty(name: str) -> None:
    # An image a thousand times larger than the others leaves these almost no variance: only there the default tol is too wide.
    tol = 1e-5 if name == "outlier" else TOL
    X, y = hard(name)
    C, Z = int(y.max()) + 1, standardised(X)
    onehot = np.eye(C)[y]

    def value_and_gradient(flat: np.ndarray, l2: float) -> tuple[float, np.ndarray]:
        W, b = flat[:-C].reshape(C, -1), flat[-C:]
        error = scipy.special.softmax(Z @ W.T + b, axis=1) - onehot
        return objective(W, b, Z, y, l2), np.concatenate([(error.T @ Z + l2 * W).ravel(), error.sum(0)]) / len(y)

    start = np.zeros(C * (Z.shape[1] + 1))
    for l2, W, b, converged in along_the_grid(X, y, tol):
        oracle = scipy.optimize.minimize(
            value_and_gradient, start, (l2,), "L-BFGS-B", jac=True, options={"maxiter": 3000, "gtol": 1e-7, "ftol": 1e-13}
        )
        start = oracle.x
        ours, gradient = value_and_gradient(np.concatenate([W.ravel(), b]), l2)
        assert converged
        assert np.abs(gradient).max() <= 1.1 * tol
        assert ours == pytest.approx(oracle.fun, abs=1e-3), f"l2={l2:g}"


@pytest.mark.parametrize("name", ["plain", "two classes", "more features than images", "rare class"])
def test_objective_and_predictions_are_those_of_scikit_learn(name: str) -> None:
    X, y = hard(name)
    Z = standardised(X)
    for l2, W, b, _ in along_the_grid(X, y)[:6]:
        # scikit-learn fits two classes with one weight vector w, which is W = (-w/2, w/2): half the squared norm.
        oracle = LogisticRegression(C=(2 if y.max() == 1 else 1) / l2, tol=1e-7, max_iter=10000).fit(Z, y)
        W_oracle, b_oracle = oracle.coef_, oracle.intercept_
        if y.max() == 1:
            W_oracle, b_oracle = np.concatenate([-W_oracle, W_oracle]) / 2, np.concatenate([-b_oracle, b_oracle]) / 2
        assert objective(W, b, Z, y, l2) == pytest.approx(objective(W_oracle, b_oracle, Z, y, l2), abs=1e-4)
        assert ((Z @ W.T + b).argmax(1) == oracle.predict(Z)).mean() > 0.98


def test_a_fit_chooses_on_validation_and_then_learns_from_both_like_scikit_learn() -> None:
    (X, y), (X_val, y_val), (X_test, _) = (example(seed=seed, signal=0.4) for seed in range(3))
    probe = LogregProbe(l2=(1e-2, 1e4, 7), tol=1e-6).fit(X, y, X_val, y_val)
    grid = np.geomspace(1e-2, 1e4, 7)
    scaler = StandardScaler().fit(X)
    right = []
    for l2 in grid:
        oracle = LogisticRegression(C=1 / l2, tol=1e-6, max_iter=10000).fit(scaler.transform(X), y)
        right.append(100 * oracle.score(scaler.transform(X_val), y_val))
    np.testing.assert_allclose(probe.report["grid"], grid)
    np.testing.assert_allclose(probe.report["val_scores"], right, atol=0.9)  # one image of 120
    best = max(range(7), key=lambda i: (probe.report["val_scores"][i], i))
    assert probe.report["selected"] == {"l2": pytest.approx(grid[best])}
    assert probe.report["selected_on"] == "val"
    assert probe.report["converged"] is True

    both, labels = np.concatenate([X, X_val]), np.concatenate([y, y_val])
    scaler = StandardScaler().fit(both)
    oracle = LogisticRegression(C=1 / grid[best], tol=1e-7, max_iter=10000).fit(scaler.transform(both), labels)
    expected = oracle.decision_function(scaler.transform(X_test))
    np.testing.assert_allclose(probe.scores(X_test), expected, atol=0.02)
    assert (probe.predict(X_test) == oracle.predict(scaler.transform(X_test))).mean() > 0.98


def test_of_equally_good_penalties_the_strongest_is_taken_and_the_edge_is_flagged() -> None:
    X, y = hard("separable")
    report = LogregProbe(l2=(1e-3, 1.0, 4)).fit(X, y, X, y).report
    assert report["val_scores"] == [100.0] * 4
    assert report["selected"]["l2"] == pytest.approx(1)
    assert report["grid_edge"] is True
    assert any("edge" in note for note in report["notes"])


def test_a_choice_inside_the_grid_is_not_flagged() -> None:
    (X, y), (X_val, y_val) = (example(seed=seed, signal=0.4) for seed in range(2))
    report = LogregProbe(l2=(1e-6, 1e6, 13)).fit(X, y, X_val, y_val).report
    assert report["grid_edge"] is False
    assert report["notes"] == []


def test_a_fit_that_was_cut_short_says_so() -> None:
    X, y = example()
    report = LogregProbe(max_iter=1).fit(X, y, X, y).report
    assert report["converged"] is False
    assert any("did not converge" in note for note in report["notes"])


@pytest.mark.parametrize("name", HARD)
def test_every_difficult_set_of_features_gives_finite_scores_and_a_converged_fit(name: str) -> None:
    X, y = hard(name)
    probe = LogregProbe(l2=(1e-6, 1e5, 12)).fit(X, y, X, y)
    assert probe.report["converged"] is True
    assert np.isfinite(probe.scores(X)).all()
    assert (probe.predict(X) == y).mean() > 0.5


def test_features_in_other_units_give_the_same_probe() -> None:
    X, y = example()
    scaled = X * np.float32(2.0) ** np.arange(-32, 32, 8, dtype=np.float32)
    probe, other = LogregProbe().fit(X, y, X, y), LogregProbe().fit(scaled, y, scaled, y)
    assert other.report == probe.report
    np.testing.assert_allclose(other.scores(scaled), probe.scores(X), atol=1e-3)


def test_a_class_seen_only_in_validation_is_learned_in_the_refit_and_a_class_never_seen_never_wins() -> None:
    X, y = example(signal=3)
    known = y != 3
    probe = LogregProbe(l2=(0.01, 1.0, 3)).fit(X[known], y[known], X, y, n_classes=6)
    assert max(probe.report["val_scores"]) <= 75
    assert (probe.predict(X)[y == 3] == 3).mean() > 0.9
    assert set(probe.predict(X)) <= {0, 1, 2, 3}
    assert probe.scores(X).shape == (120, 6)
    assert np.isfinite(probe.scores(X)).all()


def test_a_single_class_is_predicted_everywhere() -> None:
    X, _ = example()
    y = np.full(len(X), 2)
    probe = LogregProbe().fit(X, y, X, y, n_classes=4)
    assert (probe.predict(X) == 2).all()
    assert probe.report["converged"] is True


def test_blocks_give_the_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for X, y in (example(), hard("more features than images")):
        whole = LogregProbe(l2=(1.0, 1e3, 4), tol=1e-6).fit(X, y, X, y)
        with monkeypatch.context() as small:
            for module in (rows, basis, softmax_regression, logreg):
                small.setattr(module, "BLOCK", 500)
            blocked = LogregProbe(l2=(1.0, 1e3, 4), tol=1e-6).fit(X, y, X, y)
        assert blocked.report == whole.report
        np.testing.assert_allclose(blocked.scores(X), whole.scores(X), atol=1e-3)


def test_float16_features_on_disk_give_the_probe_of_the_same_numbers_in_memory(tmp_path: Path) -> None:
    X, y = example()
    X = X.astype(np.float16)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    probe, other = LogregProbe().fit(mapped, y, mapped, y), LogregProbe().fit(X.astype(np.float32), y, X.astype(np.float32), y)
    np.testing.assert_allclose(probe.scores(mapped), other.scores(X), atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_an_error(value: float) -> None:
    X, y = example()
    X[7, 7] = value
    with pytest.raises(RingbenchError, match="NaN or infinity"):
        LogregProbe().fit(X, y, X, y)


def test_the_gradient_is_that_of_autograd() -> None:
    X, y = example()
    axes = Basis([X], "cpu")
    problem = Problem(axes.rotated([X]).double(), axes.variance.double(), torch.from_numpy(y), 4)
    l2 = torch.tensor([0.1, 10.0], dtype=torch.float64)
    W = torch.randn(2, 4, problem.Z.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    logits = W @ problem.Z.T
    loss = torch.stack([torch.nn.functional.cross_entropy(z.T, problem.y) for z in logits])
    expected = loss + l2 / 2 / len(X) * W[:, :, :-1].square().sum((1, 2))
    value, gradient = problem.objective(W.detach(), problem.ridge(l2))
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), W)[0])


@pytest.mark.parametrize("name", ["plain", "more features than images", "constant features", "equal features"])
def test_the_basis_is_orthonormal_uncorrelated_and_complete(name: str) -> None:
    X, _ = hard(name)
    axes = Basis([X[:50], X[50:]], "cpu")
    Z, V = axes.rotated([X])[:, :-1].double(), axes.V.double()
    torch.testing.assert_close(V.T @ V, torch.eye(V.shape[1], dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(Z.T @ Z / len(X), torch.diag(axes.variance[:-1].double()), atol=1e-4, rtol=0)
    np.testing.assert_allclose(Z @ V.T, standardised(X), atol=1e-4)


def test_progress_reaches_its_total_and_the_thread_count_is_left_as_it_was() -> None:
    told: list[tuple[int, int]] = []
    X, y = example()
    threads = torch.get_num_threads()
    LogregProbe(l2=(1e-2, 1e2, 5), progress=lambda done, total: told.append((done, total))).fit(X, y, X, y)
    assert told[-1] == (6, 6)
    assert told == sorted(told)
    assert torch.get_num_threads() == threads
