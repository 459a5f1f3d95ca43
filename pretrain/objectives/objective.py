"""What every objective has in common."""

import torch
from torch import Tensor, nn

from ringbench.errors import UsageError


class Objective(nn.Module):
    """Embeddings of this rank's batch in, its mean loss out; the mean over the ranks is the loss of the global batch.

    A training step is `loss = objective(*embeddings, ...)`, the backward pass, then `objective.remember(*embeddings, ...)`.
    Embeddings need not be normalised. Whatever autocast is on, the objective computes in float32 (or float64): at a
    temperature of 0.01, bfloat16 would be wrong by tens of percent.

    `embeddings` names what the encoders must deliver, in order; `needs` the keyword arguments of `forward` and `remember`:
    `index` (b,) positions of the images in the training set, `labels` (b,), `generator` equal on all ranks.
    """

    embeddings: tuple[str, ...]
    needs: tuple[str, ...] = ()

    def __init__(self, temperature: float) -> None:
        super().__init__()
        if not temperature > 0:
            raise UsageError(f"the temperature must be positive, found {temperature}")
        self.temperature = temperature

    def __call__(self, *embeddings: Tensor, **needs) -> Tensor:
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return super().__call__(*embeddings, **needs)

    def remember(self, *embeddings: Tensor, **needs) -> None:
        """Updates the memory, where there is one, with what `forward` got."""
