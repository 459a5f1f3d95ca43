"""DCL and DCLW: NT-Xent without the positive in the denominator.

Yeh et al. 2022, "Decoupled Contrastive Learning" (arXiv 2110.06848), eq. 6:

    L_i = -w_i s_ii' / tau + log sum_{k not in {i, i'}} exp(s_ik / tau)

with w_i = 1 (DCL), or w_i = 2 - exp(s_ii' / sigma) / mean_j exp(s_jj' / sigma) (DCLW), which weighs distant pairs more.
"""

from torch import Tensor

from pretrain.distributed import gather, local_rows
from pretrain.negatives import Ring
from pretrain.objectives.simclr import SimCLR, view_similarities
from ringbench.spec import Positive


class DCL(SimCLR):
    def __init__(self, temperature: float = 0.1, negatives: Ring | None = None) -> None:
        super().__init__(temperature, negatives)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Embeddings of two views of the same images, (b, d) each -> the mean loss over the 2b views."""
        positive, negative = (s / self.temperature for s in view_similarities(z1, z2, self.negatives))
        return (negative.logsumexp(dim=1) - self.weight(positive) * positive).mean()

    def weight(self, positive: Tensor) -> Tensor | float:
        return 1.0


class DCLW(DCL):
    """The weights are constants to the gradient."""

    def __init__(self, temperature: float = 0.1, sigma: Positive = 0.5, negatives: Ring | None = None) -> None:
        super().__init__(temperature, negatives)
        self.sigma = sigma

    def weight(self, positive: Tensor) -> Tensor:
        everyone = gather(positive.detach() * (self.temperature / self.sigma))  # (2B,)
        return 2 - local_rows(len(everyone) * everyone.softmax(dim=0))
