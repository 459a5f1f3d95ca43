"""MoCo and MoCoRing: a query finds the key of its own image among the keys of a queue.

He et al. 2020, "Momentum Contrast for Unsupervised Visual Representation Learning" (arXiv 1911.05722), eq. 1:

    L_q = -log( exp(q . k+ / tau) / (exp(q . k+ / tau) + sum_{k in queue} exp(q . k / tau)) )

MoCoRing sums over all keys of the queue that lie in the ring around q. The queue itself stays first in, first out.
"""

import torch
from torch import Tensor

from pretrain.memory import Queue
from pretrain.negatives import Ring, Uniform
from pretrain.objectives.objective import Objective
from pretrain.similarity import log_sum_exp, unit
from ringbench.spec import Count


class MoCo(Objective):
    """`size` keys in the queue. The keys come from a moving average of the encoder, `pretrain.memory.EMA`."""

    embeddings = ("query", "key")

    def __init__(self, size: Count = 65_536, dim: int = 128, temperature: float = 0.07, negatives: Ring | None = None) -> None:
        super().__init__(temperature)
        self.negatives = negatives or Uniform()
        self.queue = Queue(size, dim)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Queries q and keys k (b, d) of the same images -> the mean loss; no gradient reaches the keys."""
        q, k = unit(q), unit(k.detach())
        positive = (q * k).sum(dim=1) / self.temperature  # (b,)
        negative = log_sum_exp(q, self.queue.keys, self.temperature, self.negatives)  # (b,)
        return (torch.logaddexp(positive, negative) - positive).mean()

    def remember(self, q: Tensor, k: Tensor) -> None:
        self.queue.enqueue(k)
