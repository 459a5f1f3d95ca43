"""The estimators of mutual information behind the losses, where the truth is known.

"Conditional Negative Sampling for Contrastive Learning of Visual Representations" (arXiv 2010.02037). With a critic f and k - 1
negatives v_j, both NCE and CNCE are

    E log( e^f(u, v) / (1/k) (e^f(u, v) + sum_j e^f(u, v_j)) )

NCE draws the negatives from the marginal p(v) and is a lower bound of the mutual information I(U; V). CNCE draws them from
p(v) restricted to S_B(u), a ring of similarity to u. Everything here is either exact, on a table of finitely many u and v, or
sampled from Gaussians, in numpy.
"""

import itertools
import math

import numpy as np
from scipy.special import logsumexp

from ringbench.errors import UsageError


def mutual_information(joint: np.ndarray) -> float:
    """I(U; V) in nats of a table p(u, v) (U, V)."""
    p = joint[joint > 0]
    return float((p * np.log(p / np.outer(joint.sum(1), joint.sum(0))[joint > 0])).sum())


def contrastive(joint: np.ndarray, critic: np.ndarray, noise: np.ndarray, k: int) -> tuple[float, float]:
    """The exact mean of the estimator, and its variance over the negatives (the mean of it over pairs (u, v)).

    joint (U, V) is p(u, v), critic (U, V) is f(u, v), noise (U, V) is the distribution of each negative given u. All
    V ** (k - 1) sets of negatives are visited.
    """
    V = joint.shape[1]
    mean = square = 0.0
    for negatives in itertools.product(range(V), repeat=k - 1):
        chosen = list(negatives)
        probability = noise[:, chosen].prod(axis=1)[:, None]  # (U, 1)
        total = np.logaddexp(critic, logsumexp(critic[:, chosen], axis=1)[:, None])  # (U, V)
        value = critic - total + math.log(k)
        mean = mean + probability * value
        square = square + probability * value**2
    return float((joint * mean).sum()), float((joint * (square - mean**2)).sum())


def marginal_noise(joint: np.ndarray) -> np.ndarray:
    """p(v) for every u: the negatives of NCE. (U, V)."""
    return np.tile(joint.sum(0), (len(joint), 1))


def ring_noise(joint: np.ndarray, critic: np.ndarray, w_l: float, w_u: float) -> np.ndarray:
    """p(v | v in S_B(u)), (U, V): S_B(u) holds the v whose critic lies between two percentiles of it under p(v).

    The percentile of v is 100 P(f(u, v') <= f(u, v)); those with w_l < percentile <= w_u are in.
    """
    marginal = joint.sum(0)
    below = (critic[:, None, :] <= critic[:, :, None]) @ marginal  # (U, V): P(f(u, v') <= f(u, v))
    inside = (100 * below > w_l + 1e-9) & (100 * below <= w_u + 1e-9)
    if not inside.any(axis=1).all():
        raise UsageError(f"no v lies between the percentiles {w_l} and {w_u} for some u; widen the ring")
    noise = inside * marginal
    return noise / noise.sum(axis=1, keepdims=True)


def harder_than_average(joint: np.ndarray, critic: np.ndarray, noise: np.ndarray) -> bool:
    """The condition of theorem 3.1: every negative has e^f(u, v) > c(u) = E_p(v') e^f(u, v')."""
    c = np.exp(critic) @ joint.sum(0)  # (U,)
    return bool((np.exp(critic) > c[:, None])[noise > 0].all())


def gaussian_pairs(n: int, dim: int, rho: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """u, v (n, dim) standard normal with correlation rho in each dimension, and I(U; V) = -dim / 2 log(1 - rho^2) in nats."""
    u, noise = rng.standard_normal((2, n, dim))
    return u, rho * u + math.sqrt(1 - rho**2) * noise, -dim / 2 * math.log(1 - rho**2)


def gaussian_critic(u: np.ndarray, v: np.ndarray, rho: float) -> np.ndarray:
    """The optimal critic log p(v | u) / p(v) of `gaussian_pairs`, for all pairs: (n, dim), (m, dim) -> (n, m)."""
    r = 1 - rho**2
    squares = (u**2).sum(1)[:, None] + (v**2).sum(1)
    return (2 * rho * (u @ v.T) - rho**2 * squares) / (2 * r) - u.shape[1] / 2 * math.log(r)


def sampled_contrastive(
    critic: np.ndarray, k: int, rng: np.random.Generator, w_l: float = 0, w_u: float = 100
) -> tuple[float, float]:
    """The estimate from a critic (n, n) of n pairs (positives on the diagonal), and its standard error.

    For each u the negatives are drawn with replacement from the other v in the ring (w_l, w_u]; (0, 100) is NCE.
    """
    n = len(critic)
    value = np.empty(n)
    for i, row in enumerate(critic):
        others = np.sort(np.delete(row, i))
        lower, upper = math.floor((n - 1) * w_l / 100), math.floor((n - 1) * w_u / 100)
        drawn = rng.choice(others[lower : max(upper, lower + 1)], k - 1)
        value[i] = row[i] - logsumexp([row[i], *drawn]) + math.log(k)
    return float(value.mean()), float(value.std(ddof=1) / math.sqrt(n))
