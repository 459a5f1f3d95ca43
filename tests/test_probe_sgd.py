"""The SGD probe against torch's own optimiser, from memory and from disk; and the door that every probe has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from ringbench.errors import RingbenchError, UsageError
from transfer.probes import PROBES, make, rows
from transfer.probes.sgd import SGDProbe


def example(n: int = 150, d: int = 37, n_classes: int = 6, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    return (rng.normal(size=(n, d)) + rng.normal(size=(n_classes, d))[y]).astype(dtype), y


def by_autograd(probe: SGDProbe, X: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same protocol from nn.Linear, cross_entropy, autograd and torch.optim.SGD."""
    random = torch.Generator().manual_seed(probe.seed)
    model = torch.nn.Linear(X.shape[1], n_classes)
    bound = X.shape[1] ** -0.5
    with torch.no_grad():
        model.weight.uniform_(-bound, bound, generator=random)
        model.bias.uniform_(-bound, bound, generator=random)
    optimiser = torch.optim.SGD(model.parameters(), probe.lr, momentum=probe.momentum, weight_decay=probe.weight_decay)
    features, labels = torch.from_numpy(X).float(), torch.from_numpy(y)
    for _ in range(probe.epochs):
        for batch in torch.randperm(len(X), generator=random).split(probe.batch_size):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(features[batch]), labels[batch]).backward()
            optimiser.step()
    return model.weight.detach(), model.bias.detach()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 3, "batch_size": 32},
        {"epochs": 2, "batch_size": 1000, "lr": 0.1},
        {"epochs": 3, "batch_size": 16, "momentum": 0.0},
        {"epochs": 3, "batch_size": 50, "momentum": 0.5, "weight_decay": 0.01},
    ],
)
def test_steps_are_those_of_torch_optim_sgd_with_autograd(settings: dict[str, Any], dtype: type) -> None:
    X, y = example(dtype=dtype)
    probe = SGDProbe(**settings, seed=3).fit(X, y, n_classes=7)
    W, b = by_autograd(probe, X, y, 7)
    torch.testing.assert_close(probe.W, W, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(probe.b, b, atol=1e-6, rtol=1e-6)
    expected = (torch.from_numpy(X).float() @ W.T + b).numpy()
    np.testing.assert_allclose(probe.scores(X), expected, atol=1e-5)
    assert probe.scores(X).dtype == np.float32


def test_the_defaults_are_the_papers() -> None:
    probe = SGDProbe()
    assert (probe.lr, probe.momentum, probe.weight_decay, probe.epochs, probe.batch_size) == (0.01, 0.9, 0.0, 100, 256)


def test_it_starts_from_the_distribution_of_nn_linear() -> None:
    X, y = example(d=400, n_classes=6)
    start = SGDProbe(lr=1e-30, epochs=1).fit(X, y).W
    reference = torch.nn.Linear(400, 600).weight.detach()
    assert start.abs().max() <= reference.abs().max() * 1.001
    assert float(start.std()) == pytest.approx(float(reference.std()), rel=0.05)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_read_from_disk_give_the_same_weights_as_features_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type
) -> None:
    X, y = example(dtype=dtype)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    in_memory = SGDProbe(epochs=3, batch_size=64).fit(X, y)
    held = SGDProbe(epochs=3, batch_size=64).fit(mapped, y)
    monkeypatch.setattr(rows, "_budget", lambda device: 0)
    streamed = SGDProbe(epochs=3, batch_size=64).fit(mapped, y)
    assert rows.Rows(mapped, "cpu").held is None
    for other in (held, streamed):
        assert torch.equal(other.W, in_memory.W)
        np.testing.assert_array_equal(other.scores(mapped), in_memory.scores(X))


def test_scores_read_the_features_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = example()
    probe = SGDProbe(epochs=1).fit(X, y)
    whole = probe.scores(X)
    monkeypatch.setattr(rows, "BLOCK", 37 * 4)
    np.testing.assert_allclose(probe.scores(X), whole, atol=1e-6)
    assert [len(block) for block in rows.blocks(X[:10], "cpu")] == [4, 4, 2]


def test_the_seed_decides_everything() -> None:
    X, y = example()
    first, again, other = (SGDProbe(epochs=2, seed=seed).fit(X, y).W for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_validation_data_changes_nothing() -> None:
    X, y = example()
    alone = SGDProbe(epochs=2).fit(X[:100], y[:100], n_classes=6)
    beside = SGDProbe(epochs=2).fit(X[:100], y[:100], X[100:], y[100:], n_classes=6)
    assert torch.equal(alone.W, beside.W)
    assert beside.report["selected_on"] is None
    assert beside.report["selected"] == {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "epochs": 2, "batch_size": 256}


def test_it_learns_handwritten_digits() -> None:
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    probe = SGDProbe(lr=0.1, epochs=30).fit(X[:1200], y[:1200])
    assert (probe.predict(X[1200:]) == y[1200:]).mean() > 0.9


def test_divergence_names_the_epoch_and_the_step() -> None:
    X, y = example()
    with pytest.raises(RingbenchError, match=r"diverged at epoch 1, step [2-5] of 5.*lr=1e\+38"):
        SGDProbe(lr=1e38, batch_size=32).fit(X, y)


def test_nan_features_stop_the_fit_at_their_step() -> None:
    X, y = example()
    X[5, 5] = np.nan
    order = torch.randperm(len(X), generator=_after_initialisation(*X.shape, 6))
    step = order.tolist().index(5) // 10 + 1
    with pytest.raises(RingbenchError, match=f"epoch 1, step {step} of 15"):
        SGDProbe(batch_size=10).fit(X, y)


def _after_initialisation(n: int, d: int, n_classes: int) -> torch.Generator:
    random = torch.Generator().manual_seed(0)
    torch.empty(n_classes, d).uniform_(generator=random)
    torch.empty(n_classes).uniform_(generator=random)
    return random


def test_progress_is_told_every_epoch() -> None:
    told: list[tuple[int, int]] = []
    X, y = example()
    make("sgd", {"epochs": 3}, seed=0, device="cpu", progress=lambda done, total: told.append((done, total))).fit(X, y)
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_can_be_made_by_name_and_says_whether_it_needs_validation(name: str) -> None:
    assert make(name, {}, seed=0, device="cpu").needs_validation == (name != "sgd")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sdg", {}, "unknown probe 'sdg'.*sgd"),
        ("sgd", {"learning_rte": 1}, "probe 'sgd' has no setting 'learning_rte'"),
        ("sgd", {"epoch": 1}, "no setting 'epoch'.*epochs"),
        ("sgd", {"seed": 1}, "no setting 'seed'"),
        ("sgd", {"lr": "0.01"}, "setting lr of probe 'sgd'.*'0.01'"),
        ("sgd", {"lr": 0.0}, "setting lr"),
        ("sgd", {"lr": float("nan")}, "setting lr"),
        ("sgd", {"epochs": True}, "setting epochs"),
        ("sgd", {"epochs": 1.5}, "setting epochs"),
        ("sgd", {"momentum": 1.0}, "setting momentum"),
        ("knn", {"k": 5}, "setting k of probe 'knn'"),
        ("knn", {"k": []}, "setting k"),
        ("knn", {"k": [1, 0]}, "setting k.1"),
        ("knn", {"temperature": -1.0}, "setting temperature"),
        ("logreg", {"l2": [1e-6, 1e5]}, "setting l2"),
        ("logreg", {"l2": [0.0, 1e5, 45]}, "setting l2.0"),
    ],
)
def test_a_wrong_setting_is_named_with_its_probe(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(name, settings, seed=0, device="cpu")


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("fault", ["rows", "range", "negative", "shape", "dtype", "labels", "empty"])
def test_arrays_that_do_not_belong_together_are_refused_by_every_probe(name: str, fault: str) -> None:
    X, y = example()
    y = y.copy()
    match fault:
        case "rows":
            X = X[:-1]
        case "range":
            y[0] = 6
        case "negative":
            y[0] = -1
        case "shape":
            X = X[:, :, None]
        case "dtype":
            X = X.astype(int)
        case "labels":
            y = y.astype(float)
        case "empty":
            X, y = X[:0], y[:0]
    with pytest.raises(UsageError, match="found"):
        make(name, {}, seed=0, device="cpu").fit(X, y, *example(), n_classes=6)


@pytest.mark.parametrize("name", PROBES)
def test_scores_refuse_features_of_another_width(name: str) -> None:
    X, y = example()
    probe = make(name, {"epochs": 1} if name == "sgd" else {}, seed=0, device="cpu").fit(X, y, X, y)
    with pytest.raises(UsageError, match=r"found features of shape \(150, 36\)"):
        probe.scores(X[:, :-1])


@pytest.mark.parametrize("name", ["logreg", "knn"])
def test_a_probe_that_chooses_refuses_to_choose_without_validation(name: str) -> None:
    with pytest.raises(UsageError, match="validation"):
        make(name, {}, seed=0, device="cpu").fit(*example())
