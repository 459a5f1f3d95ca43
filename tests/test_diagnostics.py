import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from pretrain import diagnostics
from pretrain.diagnostics import alignment, knn_accuracy, nt_xent_bound, prototype_bias, uniformity
from pretrain.objectives.simclr import SimCLR
from ringbench.errors import UsageError


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def units(z: torch.Tensor) -> np.ndarray:
    z = z.double().numpy()
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


@pytest.mark.parametrize("block", [2**24, 500])
@pytest.mark.parametrize("tau", [0.07, 0.01])
def test_the_knn_monitor_votes_as_scikit_learns_weighted_neighbours(tau, block, monkeypatch):
    monkeypatch.setattr(diagnostics, "BLOCK", block)
    bank, queries = vectors(300, 6), vectors(120, 6, seed=1)
    y, labels = torch.arange(300) % 5, torch.randint(0, 5, (120,), generator=torch.Generator().manual_seed(2))
    oracle = KNeighborsClassifier(20, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / tau))
    expected = oracle.fit(units(bank), y).score(units(queries), labels)
    assert knn_accuracy(bank, y, queries, labels, 20, tau) == pytest.approx(expected)


def test_leaving_one_out_no_image_votes_for_itself():
    z, y = vectors(50, 4), torch.arange(50)  # each its own class: nobody else can be right
    assert knn_accuracy(z, y, z, y, k=1) == 1
    assert knn_accuracy(z, y, z, y, k=10, leave_one_out=True) == 0
    with pytest.raises(UsageError, match="leave-one-out"):
        knn_accuracy(z, y, z[:3], y[:3], leave_one_out=True)


def test_the_monitor_takes_all_neighbours_where_there_are_fewer_than_k():
    z, y = torch.eye(4), torch.tensor([0, 0, 0, 1])
    assert knn_accuracy(z, y, z, y, k=200) == 1  # the own vote outweighs the other three by far


def test_alignment_and_uniformity_are_wang_and_isolas():
    z1, z2 = vectors(30, 5), vectors(30, 5, seed=1)
    a, b = units(z1), units(z2)
    assert alignment(z1, z2) == pytest.approx((np.linalg.norm(a - b, axis=1) ** 2).mean(), rel=1e-5)
    pairs = [math.exp(-2 * ((a[i] - a[j]) ** 2).sum()) for i in range(30) for j in range(i)]
    assert uniformity(z1) == pytest.approx(math.log(np.mean(pairs)), rel=1e-5)
    assert uniformity(torch.ones(4, 3)) == pytest.approx(0, abs=1e-5)


def test_prototype_bias_is_the_distance_of_an_image_from_its_classs_prototype():
    z, y = vectors(12, 3, 4), torch.tensor([5, 5, 5, 5, 9, 9, 9, 2, 2, 2, 2, 2])
    x = units(z)
    expected = np.mean([np.linalg.norm(x[y == y[i]].mean((0, 1)) - x[i].mean(0)) for i in range(12)])
    assert prototype_bias(z, y) == pytest.approx(expected, rel=1e-5)
    assert prototype_bias(z, torch.arange(12)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_the_loss_bounds_the_similarity_of_positives_from_above(noise, tau):
    z1 = vectors(40, 8)
    z2 = z1 + noise * vectors(40, 8, seed=1)
    positive, bound = nt_xent_bound(z1, z2, tau)
    assert positive == pytest.approx((units(z1) * units(z2)).sum(1).mean(), rel=1e-5)
    assert positive <= bound + 1e-6
    both = units(torch.cat([z1, z2]))
    s = both @ both.T - 9 * np.eye(80)
    loss = SimCLR(tau)(z1, z2).item()
    assert bound == pytest.approx(tau * math.log(79) - tau * loss + s.max(1).mean(), rel=1e-4)


def test_the_bound_is_reached_when_all_views_are_equal():
    positive, bound = nt_xent_bound(torch.ones(6, 3), torch.ones(6, 3), 0.5)
    assert positive == pytest.approx(1) and bound == pytest.approx(1, abs=1e-5)
