"""The few things an objective must know about other ranks. Without torch.distributed there is one rank."""

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def anywhere(flag: bool, device: torch.device) -> bool:
    """Whether it is set on any rank; every rank must ask at the same step."""
    if world() == 1:
        return flag
    found = torch.tensor(float(flag), device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


class _Gather(torch.autograd.Function):
    """Every rank's loss depends on every rank's rows, so a row's gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return local_rows(gradient)


def gather(x: Tensor) -> Tensor:
    """Local rows (b, ...) -> the global batch (world * b, ...) in rank order, the same on every rank; differentiable.

    Every rank must hold the same number of rows.
    """
    return x if world() == 1 else _Gather.apply(x)


def local_rows(x: Tensor) -> Tensor:
    """The global batch (world * b, ...) -> this rank's rows (b, ...)."""
    return x.chunk(world())[rank()]


def uniform_draws(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """This rank's rows of uniform numbers in [0, 1): (rows, columns) float64, on the generator's device.

    Each rank draws for the global batch and keeps its own rows: with equal generators, the numbers do not depend on how many
    ranks share the batch.
    """
    everyone = torch.rand(world() * rows, columns, generator=generator, dtype=torch.float64, device=generator.device)
    return local_rows(everyone)
