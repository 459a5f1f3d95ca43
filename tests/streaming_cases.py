"""The Triton kernels in Triton's interpreter, against float64 sorted whole, and against the blocks of torch.

`test_streaming.py` runs them, in a process whose TRITON_INTERPRET is set before anything loads Triton.
"""

import math

import pytest
import torch

from pretrain import similarity, streaming
from pretrain.negatives import Ball, Ring, Uniform
from pretrain.objectives.moco import MoCo
from pretrain.similarity import unit

RINGS = [(0, 100), (60, 100), (40, 85), (90, 99), (0, 50), (99.9, 100)]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """Each costs the interpreter a tenth of a second or more."""
    monkeypatch.setattr(streaming, "PROGRAMS", 4)


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return unit(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def oracle(z: torch.Tensor, v: torch.Tensor, ring: Ring, tau: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Edges (B, 2), values (B,) and gradients (B, d), from float64 similarities sorted whole."""
    s = z.double() @ v.double().T
    lower, upper = ring.ranks(len(v))
    edges = s.sort(dim=1).values[:, [lower, upper - 1]]
    negative = (s >= edges[:, :1]) & (s <= edges[:, 1:])
    logits = (s / tau).masked_fill(~negative, -math.inf)
    return edges, logits.logsumexp(1), logits.softmax(1) @ v.double() / tau


@pytest.mark.parametrize("window", [(0, 100), (40, 85), (90, 99)])
@pytest.mark.parametrize(("B", "n", "d"), [(1, 1, 1), (5, 63, 7), (33, 150, 128)])  # no multiples of a tile
def test_values_and_gradients_are_those_of_float64_sorted_whole(window, B, n, d):
    z, v, ring = vectors(B, d), vectors(n, d, seed=1), Ring(*window)
    value, gradient = streaming.log_sum_exp(z, v, 0.07, ring, True)
    _, expected, slope = oracle(z, v, ring, 0.07)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-4, atol=1e-4)
    assert streaming.log_sum_exp(z, v, 0.07, ring, False)[1] is None


@pytest.mark.parametrize("window", [(40, 85), (99.9, 100)])
def test_the_edges_are_those_of_float64_sorted_whole(window):
    z, v, ring = vectors(33, 20), vectors(150, 20, seed=1), Ring(*window)
    expected, *_ = oracle(z, v, ring, 1.0)
    torch.testing.assert_close(streaming.edges(z, v, ring) / 2.0**31, expected, rtol=0, atol=3e-7, check_dtype=False)


@pytest.mark.parametrize("window", RINGS)
def test_candidates_as_similar_as_an_edge_are_negatives_and_others_are_not(window):
    """Multiples of a quarter are exact in any order of summation: 129 candidates with at most nine distinct similarities."""
    signs = torch.randint(-1, 2, (129, 4), generator=torch.Generator().manual_seed(0)).float()
    z, v, ring = torch.eye(4)[:1].repeat(2, 1) * 0.5 + 0.0, signs / 2, Ring(*window)
    z[1] = torch.tensor([0.5, -0.5, 0.5, 0.5])
    edges, expected, slope = oracle(z, v, ring, 0.2)
    if window != (0, 100):  # every one is in: no edge is looked for
        assert torch.equal(streaming.edges(z, v, ring) / 2.0**31, edges.float().clamp(max=1 - 2.0**-24))
    value, gradient = streaming.log_sum_exp(z, v, 0.2, ring, True)
    torch.testing.assert_close(value.double(), expected)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-5, atol=1e-5)


def test_copies_of_the_anchor_tie_at_the_top():
    z = vectors(3, 16)
    v = torch.cat([vectors(60, 16, seed=1), *[z] * 20])
    value, _ = streaming.log_sum_exp(z, v, 0.07, Ring(90, 100), False)
    torch.testing.assert_close(value, torch.full((3,), 1 / 0.07 + math.log(20)), rtol=1e-5, atol=1e-5)


def test_a_zero_anchor_has_every_candidate_and_stays_finite():
    z, v = torch.zeros(2, 8), vectors(70, 8)
    value, gradient = streaming.log_sum_exp(z, v, 0.01, Ring(90, 99), True)
    torch.testing.assert_close(value, torch.full((2,), math.log(70)))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_it_is_and_computed_in_float32(dtype):
    z, v = vectors(9, 16).to(dtype), vectors(100, 16, seed=1).to(dtype)
    value, gradient = streaming.log_sum_exp(z, v, 0.07, Ring(40, 85), True)
    same, slope = streaming.log_sum_exp(z.float(), v.float(), 0.07, Ring(40, 85), True)
    assert torch.equal(value, same) and torch.equal(gradient, slope.to(dtype)) and value.dtype == torch.float32


def test_the_ring_of_all_percentiles_is_every_candidate_bit_for_bit(monkeypatch):
    z, v = vectors(5, 16), vectors(150, 16, seed=1)
    base = streaming.log_sum_exp(z, v, 0.07, Uniform(), True)
    monkeypatch.setattr(Ring, "everything", False)  # by way of the edges, not by the short cut
    for a, b in zip(base, streaming.log_sum_exp(z, v, 0.07, Ring(0, 100), True), strict=True):
        assert torch.equal(a, b)


def test_a_ring_far_below_the_most_similar_candidate_does_not_underflow():
    anchor = torch.eye(5)[:1]
    candidates = torch.cat([anchor, -anchor, -anchor, -anchor])
    value, _ = streaming.log_sum_exp(anchor, candidates, 0.01, Ring(0, 75), False)
    torch.testing.assert_close(value, torch.tensor([-100 + math.log(3)]))


@pytest.mark.parametrize("negatives", [Uniform(), Ball(80), Ring(40, 85)])
def test_moco_by_the_kernels_is_moco_by_torch(monkeypatch, negatives):
    objective = MoCo(150, 16, 0.07, negatives)
    q, k = (3 * vectors(9, 16, seed=seed) for seed in (3, 4))

    def loss_and_gradient():
        z = q.clone().requires_grad_()
        loss = objective(z, k)
        loss.backward()
        return loss.detach(), z.grad

    by_torch = loss_and_gradient()
    monkeypatch.setattr(similarity, "streams", lambda anchors: True)
    monkeypatch.setattr(similarity, "_in_blocks", None)  # nothing of it is used any more
    torch.testing.assert_close(loss_and_gradient(), by_torch, rtol=1e-4, atol=1e-6)
