"""`pretrain.similarity.log_sum_exp` on a GPU: Triton kernels that stream the candidates and never store a similarity.

The ring's edges come first, by radix selection: each pass over the candidates counts them by the next digit of their
similarity, until the digits of both edges are known. A last pass sums over what lies between, together with the gradient.
A similarity is computed anew in each pass, by products of tiles of the same shape, so it has the same bits in all of them.
Three products in TF32 (of high and low parts) make one that is as good as float32.

Memory is O(B): histograms of the anchors, and partial sums of a fixed number of programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.negatives import Ring

ROWS, COLUMNS = 32, 64  # anchors and candidates of a tile
PROGRAMS = 1024  # that share the work: enough to fill a device
DIGITS = ((21, 11), (10, 11), (0, 10))  # (lowest bit, bits) of a 32-bit number, from the highest digit down


def log_sum_exp(
    anchors: Tensor, candidates: Tensor, temperature: float, negatives: Ring, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Unit vectors (B, d), d <= 128, and (n, d), float32 or less -> the values (B,) in float32 and their gradient (B, d)."""
    anchors, candidates = anchors.contiguous(), candidates.contiguous()
    B, d = anchors.shape
    grid, sizes = _work(anchors, candidates)
    splits = grid[1]
    tops, masses = anchors.new_empty(2, splits, B, dtype=torch.float32)
    gradients = anchors.new_empty((splits, B, d) if with_gradient else 0, dtype=torch.float32)
    _sum[grid](
        *(anchors, candidates, edges(anchors, candidates, negatives), tops, masses, gradients, 1 / temperature),
        **sizes,
        GRADIENT=with_gradient,
    )
    top = tops.amax(0)
    share = ((tops - top) / temperature).exp()  # (splits, B)
    mass = (share * masses).sum(0)
    value = top / temperature + mass.log()
    if not with_gradient:
        return value, None
    gradient = torch.einsum("sb,sbd->bd", share, gradients) / (mass * temperature)[:, None]
    return value, gradient.to(anchors.dtype)


def edges(anchors: Tensor, candidates: Tensor, negatives: Ring) -> Tensor:
    """The similarities between which each anchor's ring lies, both included, in units of 2^-31: (B, 2) int32."""
    B, n = len(anchors), len(candidates)
    if negatives.everything:
        return torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32, device=anchors.device).repeat(B, 1)
    lower, upper = negatives.ranks(n)
    rank = torch.tensor([lower, upper - 1], device=anchors.device).repeat(B, 1)
    grid, sizes = _work(anchors, candidates)
    found = torch.full((B, 1), -1, dtype=torch.int32, device=anchors.device)  # what stands above the digit; at first the sign
    for lowest, bits in DIGITS:
        first = (found << bits) if found.shape[1] == 2 else torch.full_like(found, -(2 ** (bits - 1)))
        counts = torch.zeros(B, first.shape[1], 2**bits, dtype=torch.int32, device=anchors.device)
        _count[grid](anchors, candidates, first, counts, lowest, **sizes, EDGES=first.shape[1], BUCKETS=2**bits)
        upto = counts.cumsum(2).expand(B, 2, -1)
        digit = (upto <= rank[:, :, None]).sum(2)
        rank = rank - torch.where(digit > 0, upto.gather(2, (digit[:, :, None] - 1).clamp_min(0))[:, :, 0], 0)
        found = first + digit.int()
    return found


def _work(anchors: Tensor, candidates: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid (row blocks, parts of the candidates), and the sizes that every kernel is given."""
    (B, d), n = anchors.shape, len(candidates)
    rows = triton.cdiv(B, ROWS)
    part = triton.cdiv(triton.cdiv(n, triton.cdiv(PROGRAMS, rows)), COLUMNS) * COLUMNS
    tile = {"D": max(16, triton.next_power_of_2(d)), "ROWS": ROWS, "COLUMNS": COLUMNS}
    return (rows, triton.cdiv(n, part)), {"B": B, "n": n, "d": d, "part": part, **tile, "num_stages": 2}


@triton.jit
def _read(matrix, row, rows, d, D: tl.constexpr):
    """Some rows of a matrix (rows, d) as float32, D wide; 0 beyond its borders."""
    k = tl.arange(0, D)
    inside = (row < rows)[:, None] & (k < d)[None, :]
    return tl.load(matrix + row.to(tl.int64)[:, None] * d + k[None, :], inside, 0.0).to(tl.float32)


@triton.jit
def _fixed_point(s):
    """-1..1 in units of 2^-31: in order, and spread over the digits. Beyond are only rounding errors."""
    return tl.clamp(s * 2147483648.0, -2147483648.0, 2147483520.0).to(tl.int32)


@triton.jit
def _count(
    anchors, candidates, first, counts, lowest, B, n, d, part,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """counts (B, EDGES, BUCKETS) += candidates whose similarity >> lowest is first + 0 .. BUCKETS - 1; first (B, EDGES)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    z = _read(anchors, row, B, d, D)
    start = tl.program_id(1) * part
    for at in range(start, tl.minimum(start + part, n), COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        v = _read(candidates, column, n, d, D)
        digits = _fixed_point(tl.dot(z, tl.trans(v), input_precision="tf32x3")) >> lowest
        for edge in tl.static_range(EDGES):
            where = row * EDGES + edge
            bucket = digits - tl.load(first + where, row < B, 0)[:, None]
            counted = (bucket >= 0) & (bucket < BUCKETS) & (row < B)[:, None] & (column < n)[None, :]
            tl.atomic_add(counts + (where * BUCKETS)[:, None] + bucket, 1, counted, sem="relaxed")


@triton.jit
def _sum(
    anchors, candidates, edges, tops, masses, gradients, inverse_temperature, B, n, d, part,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """For one part of the candidates, over those in the ring: the largest similarity s, mass = sum of exp((s - top) / tau),
    and the sum of the candidates with these weights. The top is -2, below any, where the part has none in the ring."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    z = _read(anchors, row, B, d, D)
    low, high = tl.load(edges + 2 * row, row < B, 0)[:, None], tl.load(edges + 2 * row + 1, row < B, 0)[:, None]
    top = tl.full([ROWS], -2.0, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    gradient = tl.zeros([ROWS, D], tl.float32)
    start = tl.program_id(1) * part
    for at in range(start, tl.minimum(start + part, n), COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        v = _read(candidates, column, n, d, D)
        s = tl.dot(z, tl.trans(v), input_precision="tf32x3")
        number = _fixed_point(s)
        inside = (number >= low) & (number <= high) & (column < n)[None, :]
        s = tl.where(inside, s, -float("inf"))
        now = tl.maximum(top, tl.max(s, 1))
        weight = tl.exp((s - now[:, None]) * inverse_temperature)
        shrink = tl.exp((top - now) * inverse_temperature)
        mass = mass * shrink + tl.sum(weight, 1)
        if GRADIENT:
            gradient = tl.dot(weight, v, gradient * shrink[:, None], input_precision="tf32x3")
        top = now
    where = tl.program_id(1).to(tl.int64) * B + row
    tl.store(tops + where, top, row < B)
    tl.store(masses + where, mass, row < B)
    if GRADIENT:
        k = tl.arange(0, D)
        tl.store(gradients + where[:, None] * d + k[None, :], gradient, (row < B)[:, None] & (k < d)[None, :])
