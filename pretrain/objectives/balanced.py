"""The balanced contrastive loss and the generalised NT-Xent loss: attraction and repulsion weighed by hand.

"Understanding Self-supervised Contrastive Learning through Supervised Objectives" (TMLR 2025, arXiv 2510.10572). For unit
vectors z, the views of other images k, and the positive i':

    balanced       L_i = -s_ii' + (lambda / alpha) log sum_{k not in {i, i'}} exp(alpha s_ik)
    generalised    the same with the positive in the sum

At lambda = 1, alpha times these are DCL and NT-Xent with temperature 1 / alpha.
"""

import torch
from torch import Tensor

from pretrain.negatives import Ring, Uniform
from pretrain.objectives.objective import Objective
from pretrain.objectives.simclr import view_similarities
from ringbench.spec import Positive


class Balanced(Objective):
    """`scale` multiplies the loss; left out it is alpha, the scale of NT-Xent. Which one the paper has is not stated."""

    embeddings = ("view", "view")

    def __init__(
        self,
        alpha: Positive = 4.0,
        lambda_: float = 2.0,
        scale: float | None = None,
        positive_in_sum: bool = False,
        negatives: Ring | None = None,
    ) -> None:
        super().__init__(temperature=1 / alpha)
        self.alpha, self.lambda_ = alpha, lambda_
        self.scale = alpha if scale is None else scale
        self.positive_in_sum = positive_in_sum
        self.negatives = negatives or Uniform()

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Embeddings of two views of the same images, (b, d) each -> the mean loss over the 2b views."""
        positive, negative = view_similarities(z1, z2, self.negatives)  # (2b,), (2b, 2B)
        repulsion = (self.alpha * negative).logsumexp(dim=1)
        if self.positive_in_sum:
            repulsion = torch.logaddexp(self.alpha * positive, repulsion)
        return self.scale * (self.lambda_ / self.alpha * repulsion - positive).mean()
