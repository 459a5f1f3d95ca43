"""Which images make up each batch: a function of seed, epoch and step, so there is no position to lose."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ringbench.errors import UsageError


class Sampler:
    """Each epoch visits the n images in a new order, in batches of equal size; the n % batch last of the order sit it out.

    No image is in a batch twice, on any number of ranks, and none is padded.
    """

    def __init__(self, n: int, batch: int, seed: int, rank: int = 0, ranks: int = 1) -> None:
        if batch % ranks:
            raise UsageError(f"a batch of {batch} cannot be shared by {ranks} ranks; choose a multiple")
        if not 1 < batch <= n:
            raise UsageError(f"a batch of {batch} images needs 2 or more and at most the {n} there are; --set batch_size=")
        self.n, self.batch, self.seed, self.rank, self.ranks = n, batch, seed, rank, ranks
        self.steps = n // batch  # of one epoch

    def rest_of(self, epoch: int, skip: int = 0) -> Iterator[Tensor]:
        """This rank's images of the epoch's batches (batch / ranks,), from batch `skip` on."""
        order = torch.randperm(self.n, generator=generator(self.seed, "order", epoch))
        for batch in order[: self.steps * self.batch].split(self.batch)[skip:]:
            yield batch.chunk(self.ranks)[self.rank]

    def global_batch(self, step: int) -> Tensor:
        """The images (batch,) of all ranks at a step, counted from the start of the training."""
        whole = Sampler(self.n, self.batch, self.seed)
        return next(whole.rest_of(*divmod(step, self.steps)))


def generator(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose at one step. Nothing random is carried from step to step, so nothing of it is saved."""
    text = repr((seed, purpose, numbers)).encode()
    return torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1)
