"""Cosine similarities and the log-sum-exp over an anchor's negatives."""

import importlib.util

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.negatives import Ring

BLOCK = {"cpu": 2**22, "cuda": 2**26}  # similarities held at a time: near the cache, and enough to fill the device
TRITON = importlib.util.find_spec("triton") is not None  # comes with torch's builds for Linux


def unit(z: Tensor) -> Tensor:
    """(N, d) -> rows of length 1, in float32 or better. A zero vector stays zero and gets no gradient: it has no direction."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    norm = torch.linalg.vector_norm(z.detach(), dim=1, keepdim=True)
    zero = norm == 0
    return torch.nn.functional.normalize(z.masked_fill(zero, 1.0), dim=1).masked_fill(zero, 0.0)


class _LogSumExp(torch.autograd.Function):
    """The gradient is made in the forward pass, while the similarities are at hand."""

    @staticmethod
    def forward(ctx, anchors: Tensor, candidates: Tensor, temperature: float, negatives: Ring) -> Tensor:
        if streams(anchors):
            from pretrain.streaming import log_sum_exp as compute
        else:
            compute = _in_blocks
        result, ctx.gradient = compute(anchors, candidates, temperature, negatives, anchors.requires_grad)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        return upstream[:, None] * ctx.gradient, None, None, None


def streams(anchors: Tensor) -> bool:
    """Whether the kernels of `pretrain.streaming` take anchors (B, d) on: tiles must fit, and TF32 needs Ampere or newer."""
    if not (TRITON and anchors.is_cuda and torch.version.cuda and torch.cuda.get_device_capability(anchors.device) >= (8, 0)):
        return False
    return anchors.shape[1] <= 128 and anchors.dtype != torch.float64


def _in_blocks(
    anchors: Tensor, candidates: Tensor, temperature: float, negatives: Ring, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The values (B,) and their gradient (B, d), block by block: memory is O(block), and each similarity is computed once."""
    B, n = len(anchors), len(candidates)
    rows = min(B, max(1, BLOCK.get(anchors.device.type, 2**24) // n))
    result = anchors.new_empty(B)
    gradient = torch.empty_like(anchors) if with_gradient else None
    buffers = anchors.new_empty(2, rows, n)  # fresh memory for each block would cost as much as the arithmetic
    for start in range(0, B, rows):
        part = slice(start, start + rows)
        s, weight = buffers[:, : len(anchors[part])]  # (rows, n) each
        torch.mm(anchors[part], candidates.T, out=s)
        if negatives.everything:
            top = s.amax(1, keepdim=True)
            torch.sub(top, s, out=weight).mul_(-1 / temperature).exp_()
        else:
            t_l, top = negatives.edges_(weight.copy_(s))
            # Above the ring top - s < 0; infinitely far below instead, its weight is 0.
            below = torch.nn.functional.threshold_(torch.sub(top, s, out=weight), -torch.finfo(s.dtype).tiny, torch.inf)
            below.mul_(-1 / temperature).exp_().mul_(s.ge_(t_l))
        mass = weight.sum(1, keepdim=True)
        result[part] = (top / temperature + mass.log())[:, 0]
        if gradient is not None:
            torch.mm(weight, candidates, out=gradient[part])
            gradient[part] /= mass * temperature
    return result, gradient


def log_sum_exp(anchors: Tensor, candidates: Tensor, temperature: float, negatives: Ring) -> Tensor:
    """log sum over the negatives j of exp(anchor . candidate_j / temperature), for each anchor.

    Unit vectors (B, d) and (n, d) -> (B,). Differentiable in the anchors; the candidates are a memory and get no gradient.
    """
    negatives.ranks(len(candidates))
    return _LogSumExp.apply(anchors, candidates, temperature, negatives)
