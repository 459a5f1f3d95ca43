import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pretrain.estimators import (
    contrastive,
    gaussian_critic,
    gaussian_pairs,
    harder_than_average,
    marginal_noise,
    mutual_information,
    ring_noise,
    sampled_contrastive,
)
from ringbench.errors import UsageError

K = 3
seeds = st.integers(0, 10_000)


def random_table(seed: int, U: int = 4, V: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """A joint distribution and a critic that has nothing to do with it but a share of the truth."""
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.full(U * V, 0.5)).reshape(U, V) + 1e-4
    joint /= joint.sum()
    truth = np.log(joint / np.outer(joint.sum(1), joint.sum(0)))
    return joint, rng.uniform(0, 1) * truth + rng.normal(0, 0.5, (U, V))


def test_mutual_information_is_zero_for_independent_and_the_entropy_for_equal_variables():
    p = np.array([0.2, 0.3, 0.5])
    assert mutual_information(np.outer(p, [0.4, 0.6])) == pytest.approx(0, abs=1e-12)
    assert mutual_information(np.diag(p)) == pytest.approx(-(p * np.log(p)).sum())


def test_the_exact_estimator_is_the_limit_of_sampling_it():
    joint, critic = random_table(0)
    noise = ring_noise(joint, critic, 30, 90)
    rng = np.random.default_rng(0)
    pairs = rng.choice(joint.size, 40_000, p=joint.ravel())
    values = []
    for u, v in zip(*np.unravel_index(pairs, joint.shape), strict=True):
        e = np.exp(critic[u])
        values.append(math.log(e[v] / ((e[v] + e[rng.choice(len(e), K - 1, p=noise[u])].sum()) / K)))
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - contrastive(joint, critic, noise, K)[0]) < 4 * error


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_nce_never_exceeds_the_mutual_information(seed):
    joint, critic = random_table(seed)
    assert contrastive(joint, critic, marginal_noise(joint), K)[0] <= mutual_information(joint) + 1e-12


@settings(max_examples=80, deadline=None)
@given(seeds, st.integers(50, 95))
def test_theorem_3_1_negatives_harder_than_average_put_cnce_below_nce(seed, w_l):
    joint, critic = random_table(seed)
    try:
        noise = ring_noise(joint, critic, w_l, 100)
    except UsageError:
        assume(False)
    assume(harder_than_average(joint, critic, noise))
    cnce, nce = (contrastive(joint, critic, q, K)[0] for q in (noise, marginal_noise(joint)))
    assert cnce <= nce + 1e-12 <= mutual_information(joint) + 2e-12


def test_negatives_easier_than_average_break_the_bound():
    """The counterexample: conditional negatives do not bound the information unless they are hard."""
    joint = np.array([[0.45, 0.05], [0.05, 0.45]])
    critic = np.log(joint / np.outer(joint.sum(1), joint.sum(0)))  # the best critic there is
    easy = ring_noise(joint, critic, 0, 50)
    assert not harder_than_average(joint, critic, easy)
    nce = contrastive(joint, critic, marginal_noise(joint), K)[0]
    cnce = contrastive(joint, critic, easy, K)[0]
    assert nce < mutual_information(joint) < cnce
    # By hand: with probability 0.9 v equals u, e^f is 1.8, and both negatives have e^f = 0.2; otherwise all three are 0.2.
    assert cnce == pytest.approx(0.9 * math.log(3 * 1.8 / (1.8 + 0.4)))


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_theorem_3_2_less_varied_negatives_mean_less_variance_and_more_bias(seed):
    """The ring's critic is nearly constant, the rest of it is not: the clearest case of the theorem's condition."""
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.ones(24)).reshape(4, 6) * 0.5 + 0.5 / 24
    critic = rng.uniform(-2, 0, (4, 6))
    critic[:, 4:] = rng.uniform(0.7, 0.75, (4, 2))
    noise = marginal_noise(joint)
    noise[:, :4] = 0
    noise /= noise.sum(1, keepdims=True)
    assert harder_than_average(joint, critic, noise)
    (cnce, cnce_variance), (nce, nce_variance) = (contrastive(joint, critic, q, K) for q in (noise, marginal_noise(joint)))
    information = mutual_information(joint)
    assert cnce_variance <= nce_variance
    assert information - cnce >= information - nce


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_ring_of_all_percentiles_is_the_marginal(seed):
    joint, critic = random_table(seed)
    np.testing.assert_allclose(ring_noise(joint, critic, 0, 100), marginal_noise(joint))


def test_the_gaussian_critic_is_the_log_density_ratio():
    stats = pytest.importorskip("scipy.stats")
    u, v, _ = gaussian_pairs(5, 2, 0.7, np.random.default_rng(0))
    ratio = stats.norm.logpdf(v[None], 0.7 * u[:, None], math.sqrt(1 - 0.49)) - stats.norm.logpdf(v[None])
    np.testing.assert_allclose(gaussian_critic(u, v, 0.7), ratio.sum(2))


def test_on_gaussians_nce_approaches_the_truth_from_below_and_the_ring_stays_below_nce():
    rng = np.random.default_rng(0)
    u, v, information = gaussian_pairs(1500, 2, 0.8, rng)
    assert information == pytest.approx(1.0217, abs=1e-4)
    critic = gaussian_critic(u, v, 0.8)
    few, _ = sampled_contrastive(critic, 4, rng)
    nce, error = sampled_contrastive(critic, 256, rng)
    ring, _ = sampled_contrastive(critic, 256, rng, 80, 99)
    assert few < nce < information + 4 * error
    assert nce == pytest.approx(information, abs=0.1)
    assert ring < nce - 0.5  # hard negatives: far below, and valid
    easy, _ = sampled_contrastive(critic, 256, rng, 0, 50)
    assert easy > information + 0.5  # an arbitrary distribution of negatives bounds nothing
