"""Probes against their baselines, in one run: python benchmarks/probes.py. A ratio above 1 means that the probe is faster.

Wanted: logistic regression >= 10 x scikit-learn's warm-started sweep, best accuracy within 0.2 points, objective within 1e-3 of
the optimum at every penalty; kNN >= 0.8 x bare matmul + topk; SGD no slower than gathering its batches and multiplying them.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from backbones.trunk import FrozenBackbone, random_trunk, trunk_sha256
from transfer.probes.basis import Basis
from transfer.probes.knn import BANK_BLOCK, KNNProbe
from transfer.probes.logreg import LogregProbe
from transfer.probes.rows import Rows
from transfer.probes.sgd import SGDProbe
from transfer.probes.softmax_regression import Problem, path

GRID = np.geomspace(1e5, 1e-6, 45)
Weights = tuple[np.ndarray, np.ndarray]


def features(n: int, d: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated and rectified, with a power-law spectrum, as pooled features are."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    mix = fixed.normal(size=(d, d)) * (np.arange(1, d + 1) ** -0.7)[:, None]
    centres = 0.25 * fixed.normal(size=(n_classes, d))
    y = rng.integers(0, n_classes, n)
    return np.maximum((rng.normal(size=(n, d)) + centres[y]) @ mix, 0).astype(np.float32), y


def digits() -> tuple[np.ndarray, np.ndarray]:
    """What an untrained ResNet-18 sees in scikit-learn's 1,797 handwritten digits at 64 px: real features, badly conditioned."""
    images, y = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).view(-1, 1, 8, 8).mul(255 / 16).round().byte().expand(-1, 3, 8, 8)
    trunk = random_trunk("resnet18", "imagenet", 0)
    backbone = FrozenBackbone(trunk, {"trunk_sha256": trunk_sha256(trunk)}).for_inputs(
        scale01=True, mean=(0.3,) * 3, std=(0.4,) * 3
    )
    enlarged = F.interpolate(pixels, (64, 64), mode="bilinear")
    return torch.cat([backbone(part)["pooled"] for part in enlarged.split(256)]).numpy(), y


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of some repeats: the one least disturbed."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def logreg(label: str, X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> None:
    mean, std = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)
    Z, Z_val = (((a - mean) / std).astype(np.float32) for a in (X, X_val))

    def by_scikit_learn(tol: float) -> list[Weights]:
        model, found = LogisticRegression(tol=tol, max_iter=1000, warm_start=True), []
        for l2 in GRID:
            model.set_params(C=1 / l2).fit(Z, y)
            found.append((model.coef_.copy(), model.intercept_.copy()))
        return found

    def by_path(tol: float) -> list[Weights]:
        axes = Basis([X], "cpu")
        problem = Problem(axes.rotated([X]), axes.variance, torch.from_numpy(y), 10)
        groups = path(problem, torch.tensor(GRID, dtype=torch.float32), tol, 1000)
        return [tuple(part.numpy() for part in axes.weights(w)) for W, _ in groups for w in W]

    def objectives(found: list[Weights]) -> np.ndarray:
        logits = [Z.astype(np.float64) @ W.T + b for W, b in found]
        losses = [(logsumexp(z, axis=1) - z[np.arange(len(y)), y]).mean() for z in logits]
        return losses + GRID / 2 / len(y) * [np.square(W, dtype=np.float64).sum() for W, _ in found]

    optimum = objectives(by_path(1e-6))

    def quality(found: list[Weights]) -> str:
        best = max(100 * ((Z_val @ W.T + b).argmax(1) == y_val).mean() for W, b in found)
        return f"objective at most {max(objectives(found) - optimum):.0e} above the optimum, best validation accuracy {best:.1f}"

    ours = seconds(lambda: LogregProbe().fit(X, y, X_val, y_val))
    print(f"logreg, 45 penalties, {len(X):,} x {X.shape[1]}, 10 classes, {label}")
    print(f"  {'probe: sweep, choice and refit':55} {ours:6.2f} s          {quality(by_path(1e-4))}")
    for tol, threads in ((1e-4, None), (1e-4, 1), (1e-6, 1)):
        found: list[Weights] = []
        with threadpool_limits(threads):  # on few cores its two thread pools get in each other's way
            theirs = seconds(lambda tol=tol, found=found: found.extend(by_scikit_learn(tol)), repeats=1)
        label = f"scikit-learn, sweep alone, tol={tol:g}, {'one thread' if threads else 'as it comes'}"
        print(f"  {label:55} {theirs:6.2f} s {theirs / ours:6.1f} x {quality(found)}")


def knn() -> None:
    (X, y), (X_test, _) = features(50_000, 512, 100, 0), features(2000, 512, 100, 1)
    probe = KNNProbe(k=(200,)).fit(X[:-500], y[:-500], X[-500:], y[-500:])
    bank, queries = (F.normalize(torch.from_numpy(a)) for a in (X, X_test))

    def bare() -> None:
        kept = [(queries @ block.T).topk(200) for block in bank.split(BANK_BLOCK)]
        torch.cat([part.values for part in kept], 1).topk(200)

    ours, theirs = seconds(lambda: probe.scores(X_test)), seconds(bare)
    print(f"kNN, 2,000 queries, bank 50,000 x 512: {ours:.2f} s, {theirs / ours:.2f} x bare matmul + topk")


def sgd(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2048, 25_088)).astype(np.float32), rng.integers(0, n_classes, 2048)
    rows, labels = Rows(X, "cpu"), torch.from_numpy(y)
    W, error = torch.zeros(n_classes, 25_088), torch.zeros(n_classes, 256)

    def bare() -> None:
        for batch in torch.randperm(len(X)).split(256):
            features = rows.take(batch)
            features @ W.T
            error @ features

    def autograd() -> None:
        model = torch.nn.Linear(25_088, n_classes)
        optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for batch in torch.randperm(len(X)).split(256):
            optimiser.zero_grad()
            F.cross_entropy(model(rows.held[batch]), labels[batch]).backward()
            optimiser.step()

    ours, theirs, usual = seconds(lambda: SGDProbe(epochs=3).fit(X, y)) / 3, seconds(bare), seconds(autograd)
    print(
        f"SGD, an epoch of 2,048 x 25,088, {n_classes} classes: {ours:.2f} s, "
        f"{theirs / ours:.2f} x bare gather + matmuls, {usual / ours:.2f} x torch.optim.SGD with autograd"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    logreg("synthetic", *features(2000, 512, 10, 0), *features(2000, 512, 10, 1))
    X, y = digits()
    logreg("features of digits", X[:1437], y[:1437], X[1437:], y[1437:])
    knn()
    sgd(10)
    sgd(100)
