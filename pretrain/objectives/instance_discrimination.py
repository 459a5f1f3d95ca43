"""IR and IRing: each image is its own class, and the memory bank holds the class vectors.

Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (arXiv 1805.01978), in the softmax
form of the Ring paper (arXiv 2010.02037):

    L_i = -( s(z_i, v_i) / tau - log sum_{j in {i} + k-1 draws} exp(s(z_i, v_j) / tau) )

The draws are uniform over the other images' entries (IR), or over those in the ring around z_i (IRing). The loss with NCE, as
first published, is an option.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pretrain.distributed import gather, uniform_draws
from pretrain.memory import MemoryBank
from pretrain.negatives import Ring, Uniform
from pretrain.objectives.objective import Objective
from pretrain.similarity import unit
from ringbench.errors import UsageError
from ringbench.spec import Count


class InstanceDiscrimination(Objective):
    """`n` training images, `k` terms in the denominator: the own entry and k - 1 negatives."""

    embeddings = ("image",)
    needs = ("index", "generator")

    def __init__(
        self,
        n: int,
        dim: int = 128,
        k: Count = 4096,
        temperature: float = 0.07,
        momentum: float = 0.5,
        negatives: Ring | None = None,
        form: Literal["softmax", "nce"] = "softmax",
    ) -> None:
        super().__init__(temperature)
        if k < 2 or n < 2:
            raise UsageError(f"instance discrimination needs k >= 2 terms and n >= 2 images, found k={k} and n={n}")
        self.k, self.form = k, form
        self.negatives = negatives or Uniform()
        if form == "nce":
            if self.negatives.final != (0, 100):
                raise UsageError("NCE takes its negatives from the uniform distribution; use form 'softmax' with a ring")
            self.register_buffer("log_Z", torch.tensor(math.nan))
        self.bank = MemoryBank(n, dim, momentum)

    def forward(self, z: Tensor, *, index: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings z (b, d) of the images `index` (b,) -> the mean loss."""
        s = unit(z) @ self.bank.vectors.T  # (b, n)
        return self.loss(s, index, uniform_draws(len(z), self.k - 1, generator))

    def loss(self, s: Tensor, index: Tensor, uniform: Tensor) -> Tensor:
        """Similarities s (b, n) to the bank, uniform numbers (b, k - 1) -> the mean loss."""
        drawn = self.negatives.draw(s, index, uniform.to(s.device))  # (b, k - 1) positions in the bank
        logits = s.gather(1, torch.cat([index[:, None], drawn], dim=1)) / self.temperature  # (b, k), the own entry first
        if self.form == "nce":
            return self._nce(logits, s.shape[1])
        return (logits.logsumexp(dim=1) - logits[:, 0]).mean()

    def _nce(self, logits: Tensor, n: int) -> Tensor:
        """Wu et al., eqs. 5 to 8: is an entry the own one, or one of m draws of noise with probability 1 / n each?

        With P = exp(s / tau) / Z, the posterior h = P / (P + m / n) is the logistic function of log P - log(m / n).
        Z is fixed after the first batch (eq. 8).
        """
        if self.log_Z.isnan():
            batch = gather(logits.detach())  # (B, k)
            self.log_Z.copy_(batch.logsumexp(dim=(0, 1)) - math.log(batch.numel()) + math.log(n))
        m = logits.shape[1] - 1
        a = logits - self.log_Z - math.log(m / n)
        return (softplus(-a[:, 0]) + softplus(a[:, 1:]).sum(dim=1)).mean()

    def remember(self, z: Tensor, *, index: Tensor, generator: torch.Generator | None = None) -> None:
        self.bank.update(z, index)
