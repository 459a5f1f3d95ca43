"""What contrastive objectives remember: a memory bank, a queue, a slowly moving encoder.

Bank and queue are replicated: each update gathers the batch of all ranks and is then the same everywhere. Both are buffers,
so a checkpoint of any rank has all of them.
"""

import copy
import math

import torch
from torch import Tensor, nn

from pretrain.distributed import gather
from pretrain.similarity import unit
from ringbench.errors import UsageError


class MemoryBank(nn.Module):
    """One embedding per training image: `vectors` (n, d).

    Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (arXiv 1805.01978); entries
    start as U(-a, a) with a = 1 / sqrt(d / 3), which gives them an expected squared norm of 1.
    """

    def __init__(self, n: int, dim: int = 128, momentum: float = 0.5, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise UsageError(f"the bank's momentum must be in [0, 1), found {momentum}")
        self.momentum = momentum
        a = 1 / math.sqrt(dim / 3)
        self.register_buffer("vectors", torch.empty(n, dim).uniform_(-a, a, generator=generator))

    @torch.no_grad()
    def update(self, z: Tensor, index: Tensor) -> None:
        """vectors[index] <- normalise(m * old + (1 - m) * new); local z (b, d) and index (b,), each image once.

        To be called after the backward pass: the bank's old vectors are needed there.
        """
        z, index = gather(unit(z)), gather(index)
        mixed = self.momentum * self.vectors[index] + (1 - self.momentum) * z
        self.vectors[index] = unit(mixed).to(self.vectors.dtype)


class Queue(nn.Module):
    """The last `size` keys, first in, first out: `keys` (size, d). He et al. 2020, MoCo (arXiv 1911.05722)."""

    def __init__(self, size: int, dim: int = 128, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.register_buffer("keys", unit(torch.randn(size, dim, generator=generator)))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))  # where the oldest key lies

    @torch.no_grad()
    def enqueue(self, k: Tensor) -> None:
        """Local keys (b, d), normalised here, replace the oldest of all ranks' keys; the end wraps around to the start."""
        k = gather(unit(k)).to(self.keys.dtype)
        size, arriving = len(self.keys), len(k)
        where = (self.position + torch.arange(arriving, device=k.device)) % size
        self.keys[where[-size:]] = k[-size:]  # of more keys than there are places, the last stay
        self.position.copy_((self.position + arriving) % size)


class EMA(nn.Module):
    """An encoder whose parameters are the exponential moving average of another's: theta_k <- m theta_k + (1 - m) theta_q.

    MoCo eq. 2. Buffers (batch norm's running statistics) are its own, moved only by its own forward passes.
    """

    def __init__(self, encoder: nn.Module, momentum: float = 0.999) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise UsageError(f"the momentum of a moving average must be in [0, 1], found {momentum}")
        self.momentum = momentum
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)

    @torch.no_grad()
    def update(self, encoder: nn.Module) -> None:
        own, other = list(self.encoder.parameters()), list(encoder.parameters())
        torch._foreach_lerp_(own, other, 1 - self.momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)
