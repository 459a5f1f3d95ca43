"""What to look at while an encoder trains: numbers on embeddings, none of them a loss."""

import math

import torch
from torch import Tensor

from pretrain.similarity import unit
from ringbench.errors import UsageError

BLOCK = 2**24  # similarities held at a time


@torch.no_grad()
def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    k: int = 200,
    temperature: float = 0.07,
    leave_one_out: bool = False,
) -> float:
    """Share of the queries (q, d) whose k nearest of the bank (n, d) vote for their label, votes weighted exp(s / tau).

    The monitor of Wu et al. 2018 (arXiv 1805.01978), section 3.4. `leave_one_out`: the queries are the bank, and no image
    votes for itself. Labels are integers from 0.
    """
    if leave_one_out and len(bank) != len(queries):
        raise UsageError(f"leave-one-out needs the bank as queries, found {len(bank)} and {len(queries)} vectors")
    if len(bank) - leave_one_out < 1:
        raise UsageError("the kNN monitor has no neighbour to ask")
    bank, queries = unit(bank), unit(queries)
    k = min(k, len(bank) - leave_one_out)
    classes = int(max(bank_labels.max(), labels.max())) + 1
    right, rows = 0, max(1, BLOCK // len(bank))
    for start in range(0, len(queries), rows):
        s = queries[start : start + rows] @ bank.T  # (rows, n)
        if leave_one_out:
            s.diagonal(start).fill_(-math.inf)
        nearest, which = s.topk(k, dim=1)
        votes = s.new_zeros(len(s), classes)
        # The same factor for all votes of a query changes nothing, and exp(1 / 0.01) would overflow.
        votes.scatter_add_(1, bank_labels[which], ((nearest - nearest[:, :1]) / temperature).exp())
        right += int((votes.argmax(dim=1) == labels[start : start + rows]).sum())
    return right / len(queries)


@torch.no_grad()
def alignment(z1: Tensor, z2: Tensor, power: float = 2) -> float:
    """mean ||z1 - z2||^power over positive pairs (n, d): Wang & Isola 2020 (arXiv 2005.10242), eq. 6. Lower is closer."""
    return (unit(z1) - unit(z2)).norm(dim=1).pow(power).mean().item()


@torch.no_grad()
def uniformity(z: Tensor, t: float = 2) -> float:
    """log mean exp(-t ||z_i - z_j||^2) over pairs i < j of (n, d): Wang & Isola 2020, eq. 7. Lower is more uniform."""
    z = unit(z)
    i, j = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
    squared = 2 - 2 * (z @ z.T)[i, j]
    return ((-t * squared).logsumexp(dim=0) - math.log(len(i))).item()


@torch.no_grad()
def prototype_bias(z: Tensor, labels: Tensor) -> float:
    """mean over images of || prototype of the image's class - mean over the image's own views ||_2.

    z (n, t, d): t views of n images; labels (n,). The prototype of a class is the mean over its images and views. "Understanding
    Self-supervised Contrastive Learning through Supervised Objectives" (arXiv 2510.10572); lower goes with higher accuracy.
    """
    n, t, d = z.shape
    own = unit(z.flatten(0, 1)).view(n, t, d).mean(dim=1)  # (n, d)
    _, label, count = labels.unique(return_inverse=True, return_counts=True)
    prototypes = own.new_zeros(len(count), d).index_add_(0, label, own) / count[:, None]
    return (prototypes[label] - own).norm(dim=1).mean().item()


@torch.no_grad()
def nt_xent_bound(z1: Tensor, z2: Tensor, temperature: float) -> tuple[float, float]:
    """The mean similarity of the positive pairs, and the upper bound that the value L of NT-Xent puts on it.

        mean_i s_ii' <= tau log(2N - 1) - tau L + mean_i max_{k != i} s_ik

    z1, z2 (N, d): two views of N images; i runs over the 2N views. It holds because a log-sum-exp of 2N - 1 terms is at most
    log(2N - 1) plus the largest of them.
    """
    z = torch.cat([unit(z1), unit(z2)])
    s = z @ z.T
    s.fill_diagonal_(-math.inf)
    N = len(z1)
    positive = (s.diagonal(N).sum() + s.diagonal(-N).sum()) / (2 * N)
    loss = (s / temperature).logsumexp(dim=1).mean() - positive / temperature
    bound = temperature * (math.log(2 * N - 1) - loss) + s.amax(dim=1).mean()
    return positive.item(), bound.item()
