"""Batch norm that cannot tell a key's query from the rest of its batch (MoCo, section 3.3).

Query and key of one image must be normalised with different companions, or the statistics give the positive away. Over many
ranks the images are shuffled among the ranks before the key encoder; on one device `split_batch_norm` makes groups that act
as the ranks do, and the same shuffle goes before it.
"""

import torch
from torch import Tensor, nn

from pretrain.distributed import gather, local_rows, world
from ringbench.errors import UsageError


def shuffle(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Local rows (b, ...) of a globally permuted batch, and the permutation (world * b,), equal on all ranks."""
    order = torch.randperm(world() * len(x), generator=generator, device=generator.device).to(x.device)
    return gather(x)[local_rows(order)], order


def unshuffle(x: Tensor, order: Tensor) -> Tensor:
    """Undoes `shuffle`: the rows (b, ...) of this rank's own images."""
    return gather(x)[local_rows(order.argsort())]


class _Split:
    """In training, each of `splits` consecutive parts of the batch is normalised with its own statistics."""

    splits = 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if len(x) % self.splits:
            raise UsageError(f"a batch of {len(x)} images cannot be split into {self.splits} equal parts for batch norm")
        return torch.cat([super(_Split, self).forward(part) for part in x.chunk(self.splits)])


class SplitBatchNorm1d(_Split, nn.BatchNorm1d):
    """Of a head."""


class SplitBatchNorm2d(_Split, nn.BatchNorm2d):
    """Of a trunk."""


SPLIT = {nn.BatchNorm1d: SplitBatchNorm1d, nn.BatchNorm2d: SplitBatchNorm2d}


def split_batch_norm(module: nn.Module, splits: int) -> nn.Module:
    """Turns every batch norm in `module` into one that splits, in place; names and values of the tensors stay."""
    for part in module.modules():
        if type(part) in SPLIT:
            part.__class__ = SPLIT[type(part)]
            part.splits = splits
    return module
