import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.annealing import Adaptive, Constant, Exponential, Linear, Step
from pretrain.negatives import Ball, Ring, Uniform, order_statistics_
from ringbench.errors import UsageError

# Few distinct values, so that ties are common; some rows a single value.
rows = st.lists(st.integers(-3, 3), min_size=1, max_size=24)
windows = st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda w: w[0] < w[1])


def brute_force_ring(values: list[float], w_l: int, w_u: int) -> list[bool]:
    """The definition, in whole numbers: ranks r with w_l < 100 r / m <= w_u, one at least, and all that tie with an edge."""
    m = len(values)
    ordered = sorted(values)
    inside = [ordered[r - 1] for r in range(1, m + 1) if 100 * r > w_l * m and 100 * r <= w_u * m]
    if not inside:
        inside = [next(ordered[r - 1] for r in range(1, m + 1) if 100 * r > w_l * m)]
    return [min(inside) <= value <= max(inside) for value in values]


@settings(max_examples=300, deadline=None)
@given(rows, windows)
def test_the_ring_is_what_brute_force_over_the_definition_finds(values, window):
    similarity = torch.tensor([values], dtype=torch.float32) / 3
    mask = Ring(*window).mask(similarity)
    assert mask[0].tolist() == brute_force_ring(similarity[0].tolist(), *window)
    assert mask.any()


@settings(max_examples=200, deadline=None)
@given(rows, windows, st.integers(1, 3))
def test_excluded_entries_neither_count_nor_become_negatives(values, window, excluded):
    similarity = torch.tensor([values + [-math.inf] * excluded], dtype=torch.float32)
    mask = Ring(*window).mask(similarity, excluded)
    assert mask[0].tolist() == brute_force_ring(values, *window) + [False] * excluded


@settings(max_examples=100, deadline=None)
@given(rows.filter(lambda row: len(row) > 1), windows, st.data())
def test_draws_from_a_bank_reach_each_ring_member_but_the_own_entry(values, window, data):
    n, own = len(values), data.draw(st.integers(0, len(values) - 1))
    similarity = torch.tensor([values], dtype=torch.float32)
    others = values[:own] + values[own + 1 :]
    ring = brute_force_ring(others, *window)
    expected = {j + (j >= own) for j, inside in enumerate(ring) if inside}
    grid = (torch.arange(4 * n, dtype=torch.float64) / (4 * n))[None]  # fine enough to hit every member
    drawn = Ring(*window).draw(similarity, torch.tensor([own]), grid)
    assert set(drawn[0].tolist()) == expected


def test_arrays_and_tensors_give_the_same_draws(monkeypatch):
    """The ring is drawn from in numpy on a CPU, in torch elsewhere."""
    generator = torch.Generator().manual_seed(0)
    similarity = (torch.randn(7, 5000, generator=generator) * 100).round() / 100  # with ties
    own, uniform = torch.randint(5000, (7,), generator=generator), torch.rand(7, 999, generator=generator)
    ring = Ring(90, 99)
    expected = ring._draw(similarity, own, uniform)
    assert torch.equal(ring.draw(similarity, own, uniform), expected)
    monkeypatch.setattr("pretrain.negatives.CACHED", 3 * 5000)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert torch.equal(ring.draw(similarity, own, uniform), expected)


def test_an_anchor_that_is_no_number_gets_draws_so_that_its_loss_can_tell():
    similarity = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    similarity[1] = math.nan
    for draw in (Ring(90, 99).draw, Ring(90, 99)._draw):
        drawn = draw(similarity, torch.tensor([0, 1, 2]), torch.full((3, 4), 0.5))
        assert ((drawn >= 0) & (drawn < 50)).all()
        assert similarity.gather(1, drawn).isnan().all(1).tolist() == [False, True, False]


def test_draws_are_uniform_over_the_ring():
    generator = torch.Generator().manual_seed(0)
    similarity = torch.rand(3, 40, generator=generator)
    own = torch.tensor([0, 7, 39])
    uniform = torch.rand(3, 8000, generator=generator, dtype=torch.float64)
    drawn = Ring(50, 75).draw(similarity, own, uniform)
    for i in range(3):
        counts = torch.bincount(drawn[i], minlength=40)
        inside = counts[counts > 0].double()
        assert len(inside) == 10 and counts[own[i]] == 0  # of 39 candidates, ranks 20 .. 29
        chi2 = ((inside - 800) ** 2 / 800).sum()
        assert chi2 < 27.9  # the 0.1% point of chi-squared with 9 degrees of freedom


def test_a_ring_of_all_percentiles_draws_what_uniform_draws(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    similarity, own = torch.randn(5, 300, generator=generator), torch.tensor([0, 299, 5, 17, 100])
    uniform = torch.rand(5, 999, generator=generator, dtype=torch.float64)
    expected = Uniform().draw(similarity, own, uniform)
    monkeypatch.setattr(Ring, "everything", False)  # by way of the edges, not by the short cut
    assert torch.equal(Ring(0, 100).draw(similarity, own, uniform), expected)
    monkeypatch.setattr("pretrain.negatives.BLOCK", 600)  # two anchors at a time
    assert torch.equal(Ring(0, 100).draw(similarity, own, uniform), expected)


def test_copies_of_the_anchor_are_cut_off_by_the_upper_percentile():
    """A data set with the same image ten times: its nine copies are as similar as the own entry."""
    similarity = torch.cat([torch.linspace(-0.5, 0.5, 91), torch.ones(10)])[None]
    own = torch.tensor([100])
    uniform = torch.rand(1, 5000, dtype=torch.float64)
    assert similarity[0, Ring(50, 90).draw(similarity, own, uniform)[0]].max() < 1
    assert (Ball(50).draw(similarity, own, uniform) > 90).any()
    assert (Ball(50).draw(similarity, own, uniform) != 100).all()


def test_the_final_ring_of_mocos_queue_has_the_authors_5898_keys():
    lower, upper = Ring(90, 99).ranks(65_536)
    assert upper - lower == 5898


@pytest.mark.parametrize("m", range(1, 30))
def test_a_small_set_gives_at_least_one_negative(m):
    lower, upper = Ring(90, 99).ranks(m)
    assert 0 <= lower < upper <= m


def test_no_candidate_is_refused():
    for ring in (Ring(90, 99), Uniform()):
        with pytest.raises(UsageError, match="no candidate"):
            ring.mask(torch.full((2, 2), -math.inf), excluded=2)
        with pytest.raises(UsageError, match="no candidate"):
            ring.draw(torch.ones(1, 1), torch.tensor([0]), torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize("window", [(-1, 50), (50, 50), (60, 50), (0, 101), (math.nan, 50)])
def test_impossible_percentiles_are_refused(window):
    with pytest.raises(UsageError, match="percentiles"):
        Ring(*window)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n", [1000, 5000, 65_536])  # numpy selects in other ways in short rows than in long ones
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_order_statistics_are_those_of_sorting(threads, n, dtype):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = torch.randn(5, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
        expected = values.sort(dim=1).values
        shares = [(0.0, 0.9), (0.2, 0.92), (0.4, 0.85), (0.45, 0.945), (0.6, 1.0), (0.9, 0.99)]
        places = [(int(n * lower), int(n * upper) - 1) for lower, upper in shares]
        for lower, upper in [*places, (0, n - 1), (0, 0), (n - 1, n - 1), (31, 32)]:
            low, high = order_statistics_(values.clone(), lower, upper)
            assert torch.equal(low[:, 0], expected[:, lower]) and torch.equal(high[:, 0], expected[:, upper])
    finally:
        torch.set_num_threads(before)


def path(ring: Ring, steps: int = 100) -> np.ndarray:
    return np.array([ring.anneal(i / steps) for i in range(steps + 20)])


def test_linear_annealing_goes_the_authors_way_from_0_90_to_90_99():
    o = np.maximum(1 - 0.9 * np.arange(120) / 100, 0.1)  # the outer fraction, 1.0 -> 0.1, then constant
    np.testing.assert_allclose(path(Ring(90, 99, Linear())), np.stack([100 * (1 - o), 100 * (1 - 0.1 * o)], 1), atol=1e-9)


def test_stepwise_annealing_drops_a_tenth_of_the_outer_set_at_a_time():
    o = np.repeat(np.linspace(1.0, 0.1, 10), 10)
    np.testing.assert_allclose(path(Ring(90, 99, Step()))[:100, 0], 100 * (1 - o), atol=1e-9)
    assert (path(Ring(90, 99, Step()))[100:] == (90, 99)).all()


def test_exponential_annealing_approaches_the_final_ring():
    o = 0.1 + 0.9 * np.exp(-0.1 * np.arange(100))  # the authors' decay of 0.1 per iteration
    np.testing.assert_allclose(path(Ring(90, 99, Exponential(rate=0.1 * 100)))[:100, 0], 100 * (1 - o), atol=1e-9)


def test_without_annealing_the_final_ring_holds_from_the_start():
    assert (path(Ring(90, 99, Constant())) == (90, 99)).all()
    assert (Ring(90, 99, Linear()).w_l, Ring(90, 99, Linear()).w_u) == (90, 99)


@pytest.mark.parametrize("annealing", [Constant, Linear, Step, Exponential])
def test_a_ball_keeps_everything_above_and_uniform_keeps_everything(annealing):
    assert (path(Ball(90, annealing()))[:, 1] == 100).all()
    assert (path(Ring(0, 100, annealing())) == (0, 100)).all()


def test_adaptive_annealing_closes_while_the_loss_falls_and_opens_while_it_rises():
    ring = Ring(90, 99, Adaptive(delta=0.1, window=3))
    closed = [ring.anneal(0, loss)[0] for loss in (5.0, 4.0, 3.0, 3.5, 9.0, 6.0)]
    # Means before: none, 5, 4.5, 4, 3.5, 5.17
    np.testing.assert_allclose(closed, [0, 9, 18, 27, 18, 9])
    with pytest.raises(UsageError, match="metric"):
        ring.anneal(0)


def test_a_resumed_ring_goes_on_as_an_uninterrupted_one():
    ring, resumed = Ring(90, 99, Adaptive()), Ring(90, 99, Adaptive())
    losses = np.random.default_rng(0).normal(size=40)
    for loss in losses[:20]:
        ring.anneal(0, loss)
    resumed.load_state_dict(ring.state_dict())
    assert (resumed.w_l, resumed.w_u) == (ring.w_l, ring.w_u)
    assert [ring.anneal(0, x) for x in losses[20:]] == [resumed.anneal(0, x) for x in losses[20:]]
