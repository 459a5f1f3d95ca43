"""Linear probe trained by stochastic gradient descent: the protocol of the Ring paper (arXiv 2010.02037, linear evaluation)."""

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ringbench.errors import RingbenchError
from transfer.probes.base import STRICT, Labelled, Probe
from transfer.probes.rows import Rows


@dataclass(config=STRICT)
class SGDProbe(Probe):
    """Softmax regression with a bias: cross entropy, a constant learning rate, heavy-ball momentum, a new shuffle every epoch.

    Steps are those of torch.optim.SGD on torch.nn.Linear, with nn.Linear's initialisation U(-1/sqrt(d), 1/sqrt(d)) drawn from
    the seed. The paper gives lr, momentum, weight decay and epochs; it does not state the batch size (256 in its pretraining).
    Features that do not fit into memory are read from disk batch by batch.
    """

    needs_validation = False
    lr: PositiveFloat = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegativeFloat = 0.0
    epochs: PositiveInt = 100
    batch_size: PositiveInt = 256

    def _fit(self, train: Labelled) -> None:
        X, y = Rows(train[0], self.device), torch.from_numpy(train[1])
        random = torch.Generator().manual_seed(self.seed)
        bound = self.n_features**-0.5
        self.W = torch.empty(self.n_classes, self.n_features).uniform_(-bound, bound, generator=random).to(self.device)
        self.b = torch.empty(self.n_classes).uniform_(-bound, bound, generator=random).to(self.device)
        velocity = torch.zeros_like(self.W), torch.zeros_like(self.b)
        for epoch in range(self.epochs):
            order = torch.randperm(len(X), generator=random)
            batches = [batch.sort().values for batch in order.split(self.batch_size)]  # a mean has no order, a disk has
            losses = torch.stack([self._step(X.take(batch), y[batch].to(self.device), *velocity) for batch in batches])
            bad = losses.isfinite().logical_not().nonzero()  # looked at once an epoch: a look makes the device wait
            if len(bad):
                raise RingbenchError(
                    f"SGD probe diverged at epoch {epoch + 1}, step {int(bad[0]) + 1} of {len(batches)}: "
                    f"the loss is not finite; check the features for NaN, or lower lr={self.lr}"
                )
            self._advance(epoch + 1, self.epochs)

    def _step(self, X: Tensor, y: Tensor, velocity_W: Tensor, velocity_b: Tensor) -> Tensor:
        """One step on a batch; its loss before the step."""
        log_p = torch.addmm(self.b, X, self.W.T).log_softmax(1)
        loss = -log_p.gather(1, y[:, None]).mean()
        error = log_p.exp_().scatter_add_(1, y[:, None], -torch.ones_like(y, dtype=log_p.dtype)[:, None]).div_(len(y))
        # The gradient of the mean cross entropy is error' X for W and the sum of error for b.
        velocity_W.addmm_(error.T, X, beta=self.momentum)
        velocity_b.mul_(self.momentum).add_(error.sum(0))
        if self.weight_decay:  # of both, as in torch.optim.SGD
            velocity_W.add_(self.W, alpha=self.weight_decay)
            velocity_b.add_(self.b, alpha=self.weight_decay)
        self.W.add_(velocity_W, alpha=-self.lr)
        self.b.add_(velocity_b, alpha=-self.lr)
        return loss

    def _scores(self, X: Tensor) -> Tensor:
        return torch.addmm(self.b, X, self.W.T)
