"""SimCLR and SimCLRRing: NT-Xent, a view finds the other view of its image among all views of the batch.

Chen et al. 2020, "A Simple Framework for Contrastive Learning of Visual Representations" (arXiv 2002.05709), eq. 1:

    l(i, j) = -log( exp(s_ij / tau) / sum_{k != i} exp(s_ik / tau) )

averaged over both directions of all pairs. The candidates for negatives are the views of other images; the positive always
stays in the denominator.
"""

import math

import torch
from torch import Tensor

from pretrain.distributed import gather, rank
from pretrain.negatives import Ring, Uniform
from pretrain.objectives.objective import Objective
from pretrain.similarity import unit


class SimCLR(Objective):
    embeddings = ("view", "view")

    def __init__(self, temperature: float = 0.5, negatives: Ring | None = None) -> None:
        super().__init__(temperature)
        self.negatives = negatives or Uniform()

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Embeddings of two views of the same images, (b, d) each -> the mean loss over the 2b views."""
        positive, negative = (s / self.temperature for s in view_similarities(z1, z2, self.negatives))
        return (torch.logaddexp(positive, negative.logsumexp(dim=1)) - positive).mean()


def view_similarities(z1: Tensor, z2: Tensor, negatives: Ring) -> tuple[Tensor, Tensor]:
    """Similarities of this rank's 2b views to their positives (2b,), and to the 2B views of all ranks (2b, 2B).

    Whatever is no negative of a view, the view itself and its positive among them, has similarity -inf.
    """
    b = len(z1)
    z1, z2 = unit(z1), unit(z2)
    positive = (z1 * z2).sum(dim=1).repeat(2)  # (2b,)
    everyone = torch.cat([gather(z1), gather(z2)])  # (2B, d)
    B = len(everyone) // 2
    image = torch.arange(rank() * b, rank() * b + b, device=z1.device).repeat(2)  # (2b,): positions in the global batch
    same = image[:, None] == torch.arange(B, device=z1.device).repeat(2)  # (2b, 2B)
    s = (torch.cat([z1, z2]) @ everyone.T).masked_fill(same, -math.inf)
    return positive, s.masked_fill(~negatives.mask(s, excluded=2), -math.inf)
