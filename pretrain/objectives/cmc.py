"""CMC and CMCRing: the lightness of an image finds its colours among those of other images, and the reverse.

Tian et al. 2020, "Contrastive Multiview Coding" (arXiv 1906.05849), in the softmax form of the Ring paper. Two encoders, one
for L and one for ab, and a bank of each; L is compared with the bank of ab, and ab with the bank of L, at the same draws.
"""

import torch
from torch import Tensor

from pretrain.distributed import uniform_draws
from pretrain.negatives import Ring
from pretrain.objectives.instance_discrimination import InstanceDiscrimination
from pretrain.objectives.objective import Objective
from pretrain.similarity import unit
from ringbench.spec import Count


class CMC(Objective):
    """`n` training images, `k` terms in each denominator: the own entry and k - 1 negatives."""

    embeddings = ("L", "ab")
    needs = ("index", "generator")

    def __init__(
        self,
        n: int,
        dim: int = 128,
        k: Count = 4096,
        temperature: float = 0.07,
        momentum: float = 0.5,
        negatives: Ring | None = None,
    ) -> None:
        super().__init__(temperature)
        self.k = k
        self.L, self.ab = (InstanceDiscrimination(n, dim, k, temperature, momentum, negatives) for _ in range(2))
        self.negatives = self.L.negatives

    def forward(self, z_L: Tensor, z_ab: Tensor, *, index: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings z_L, z_ab (b, d) of the images `index` (b,) -> the sum of both directions' mean losses."""
        uniform = uniform_draws(len(z_L), self.k - 1, generator)
        s_L = unit(z_L) @ self.ab.bank.vectors.T  # (b, n): L against the colours of all images
        s_ab = unit(z_ab) @ self.L.bank.vectors.T  # (b, n)
        return self.ab.loss(s_L, index, uniform) + self.L.loss(s_ab, index, uniform)

    def remember(self, z_L: Tensor, z_ab: Tensor, *, index: Tensor, generator: torch.Generator | None = None) -> None:
        self.L.bank.update(z_L, index)
        self.ab.bank.update(z_ab, index)
