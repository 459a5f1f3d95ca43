"""Which candidates count as negatives of an anchor: Ring, and its special cases Uniform and Ball.

"Conditional Negative Sampling for Contrastive Learning of Visual Representations" (ICLR 2021, arXiv 2010.02037): a candidate
is a negative of an anchor iff its similarity to the anchor lies between the w_l-th and the w_u-th percentile of the
similarities of all candidates.

Percentiles of m candidates: sorted by similarity, the candidate of rank r = 1 .. m is in the ring iff
w_l < 100 r / m <= w_u; the ring goes from similarity t_l of its first to t_u of its last member. A ring without a member is
given one, the first above w_l. Candidates as similar as an edge are in, so ties can only make the ring larger, and the order
of the candidates does not matter.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.annealing import Annealing, Constant
from ringbench.errors import UsageError

BLOCK = 2**22  # similarities looked at in one go while drawing: bounds the memory
CACHED = 2**18  # of a thread on the CPU: they stay near it


class Ring(nn.Module):
    """Negatives between two percentiles of similarity, 0 <= w_l < w_u <= 100.

    `anneal` closes the ring. On the way its outer set, the 100 - w_l percent most similar candidates, shrinks, and the share
    of the outer set that is dropped as too similar stays the same. The authors' setting is Ring(90, 99, Linear()): from
    (0, 90) to (90, 99). Without a call to `anneal` the ring is the final one.
    """

    def __init__(self, w_l: float, w_u: float, annealing: Annealing | None = None) -> None:
        super().__init__()
        if not 0 <= w_l < w_u <= 100:
            raise UsageError(f"a ring needs percentiles 0 <= w_l < w_u <= 100, found w_l={w_l} and w_u={w_u}")
        self.final = (float(w_l), float(w_u))
        self.annealing = annealing or Constant()
        self.w_l, self.w_u = self.final

    def anneal(self, progress: float, metric: float | None = None) -> tuple[float, float]:
        """Sets and returns (w_l, w_u) for the next step; `progress` and `metric` as in `pretrain.annealing`."""
        return self._close(self.annealing(progress, metric))

    def _close(self, closed: float) -> tuple[float, float]:
        if closed == 1:
            self.w_l, self.w_u = self.final
        else:
            last_l, last_u = self.final
            self.w_l = closed * last_l
            self.w_u = 100 - (100 - last_u) / (100 - last_l) * (100 - self.w_l)
        return self.w_l, self.w_u

    @property
    def everything(self) -> bool:
        return (self.w_l, self.w_u) == (0, 100)

    def ranks(self, m: int) -> tuple[int, int]:
        """Of m candidates sorted by similarity, the ring is those at positions lower <= position < upper, from 0."""
        if m < 1:
            raise UsageError("an anchor has no candidate for a negative; use a larger batch, queue or bank")
        # An annealed percentile is a rounded number: one that stands for a whole rank must not fall short of it.
        lower = math.floor(m * self.w_l / 100 + 1e-9)
        upper = math.floor(m * self.w_u / 100 + 1e-9)
        return lower, max(upper, lower + 1)

    def edges_(self, similarity: Tensor, excluded: int = 0) -> tuple[Tensor, Tensor]:
        """Similarities (B, n), whose order is lost -> the ring's edges t_l, t_u, (B, 1) each.

        In each row, `excluded` entries that are no candidates (the anchor itself, its positive) must hold -inf.
        """
        lower, upper = self.ranks(similarity.shape[1] - excluded)
        return order_statistics_(similarity, excluded + lower, excluded + upper - 1)

    def mask(self, similarity: Tensor, excluded: int = 0) -> Tensor:
        """Similarities (B, n) -> (B, n), true for the negatives. Excluded entries as in `edges_`."""
        similarity = similarity.detach()
        if self.everything:
            self.ranks(similarity.shape[1] - excluded)
            return similarity > -math.inf
        t_l, t_u = self.edges_(similarity.clone(), excluded)
        return (similarity >= t_l) & (similarity <= t_u)

    def draw(self, similarity: Tensor, own: Tensor, uniform: Tensor) -> Tensor:
        """Draws with replacement from each anchor's ring over a memory bank, its own entry aside.

        Similarities (B, n) to the bank, own positions (B,), uniform numbers (B, k) in [0, 1) -> positions in the bank (B, k).
        A uniform number u picks member floor(u * size) of the ring, members in the bank's order.
        """
        n = similarity.shape[1]
        if self.everything:
            self.ranks(n - 1)
            member = (uniform * (n - 1)).long()
            return member + (member >= own[:, None])
        if similarity.device.type == "cpu":
            return torch.from_numpy(np.concatenate(by_rows(self._draw_array, similarity.detach(), own, uniform)))
        rows = max(1, BLOCK // n)
        return torch.cat(
            [self._draw(*part) for part in zip(*(t.split(rows) for t in (similarity.detach(), own, uniform)), strict=True)]
        )

    def _draw(self, similarity: Tensor, own: Tensor, uniform: Tensor) -> Tensor:
        B, n = similarity.shape
        t_l, t_u = self.edges_(similarity.scatter(1, own[:, None], -math.inf), excluded=1)
        outside = (similarity < t_l) | (similarity > t_u)  # NaN is not: the loss will be, and say so
        inside = outside.logical_not_().scatter_(1, own[:, None], False)
        members = inside.flatten().nonzero()[:, 0]  # positions in the flattened block
        start = n * torch.arange(B + 1, device=members.device)
        first = torch.searchsorted(members, start)
        member = (uniform * first.diff()[:, None]).long() + first[:-1, None]
        return members[member] - start[:-1, None]

    def _draw_array(self, similarity: np.ndarray, own: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """`_draw` in numpy, which takes half the time of torch on a CPU."""
        B, n = similarity.shape
        lower, upper = self.ranks(n - 1)
        start = n * np.arange(B + 1)
        outer = similarity.copy()
        outer.ravel()[start[:-1] + own] = -math.inf
        t_l, t_u = select_(outer, lower + 1, upper)
        inside = ~((similarity < t_l) | (similarity > t_u))
        inside.ravel()[start[:-1] + own] = False
        members = np.flatnonzero(inside)
        first = np.searchsorted(members, start)
        sizes = np.diff(first)[:, None].astype(uniform.dtype)
        member = (uniform * sizes).astype(np.int64) + first[:-1, None]
        return members[member] - start[:-1, None]

    def get_extra_state(self) -> dict:
        return {"w_l": self.w_l, "w_u": self.w_u, "annealing": self.annealing.state_dict()}

    def set_extra_state(self, state: dict) -> None:
        self.w_l, self.w_u = state["w_l"], state["w_u"]
        self.annealing.load_state_dict(state["annealing"])


class Uniform(Ring):
    """Every candidate: the base objective's negatives."""

    def __init__(self) -> None:
        super().__init__(0, 100)


class Ball(Ring):
    """The most similar candidates, however similar: the paper's lesion w_u = 100."""

    def __init__(self, w_l: float, annealing: Annealing | None = None) -> None:
        super().__init__(w_l, 100, annealing)


def order_statistics_(values: Tensor, lower: int, upper: int) -> tuple[Tensor, Tensor]:
    """Of each row of (B, n), whose order is lost, the values at positions lower <= upper of ascending order: (B, 1) each."""
    if values.device.type != "cpu":
        return tuple(values.kthvalue(position + 1, dim=1, keepdim=True).values for position in (lower, upper))
    edges = by_rows(lambda rows: np.concatenate(select_(rows, lower, upper), axis=1), values)
    return torch.from_numpy(np.concatenate(edges)).split(1, dim=1)


def select_(rows: np.ndarray, lower: int, upper: int) -> tuple[np.ndarray, np.ndarray]:
    """`order_statistics_` of an array, which is vectorised in numpy and not in torch."""
    rows.partition(lower, axis=1)
    if upper > lower:  # what lies above; the lower one must stay in its place
        rows[:, lower + 1 :].partition(upper - lower - 1, axis=1)
    return rows[:, lower : lower + 1], rows[:, upper : upper + 1]


def by_rows(function: Callable[..., np.ndarray], *tensors: Tensor) -> list[np.ndarray]:
    """The function's results on blocks of rows of tensors on the CPU, in their order, from as many threads as torch has."""
    rows, threads = max(1, CACHED // tensors[0].shape[1]), torch.get_num_threads()
    blocks = zip(*([part.numpy() for part in tensor.split(rows)] for tensor in tensors), strict=True)
    if threads == 1:
        return [function(*block) for block in blocks]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda block: function(*block), blocks))
