"""k nearest neighbours by cosine similarity, each voting with weight exp(similarity / T)."""

from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ringbench.errors import RingbenchError
from transfer.probes.base import STRICT, Labelled, Probe
from transfer.probes.rows import Rows, blocks

BANK_BLOCK = 16384  # rows of the bank that a block of queries is compared with at a time


@dataclass(config=STRICT)
class KNNProbe(Probe):
    """The vote of Instance Discrimination (arXiv 1805.01978, section 3.4) with DINO's grid of k (arXiv 2104.14294).

    The best k on the validation images is taken, of equals the smallest; then the bank is train and validation together.
    A k larger than the bank is clipped to it. Which of equally similar images takes the last place is not defined.
    Scores are sums of votes relative to the nearest neighbour's: no temperature overflows.
    """

    needs_validation = True
    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10, 20, 100, 200)
    temperature: PositiveFloat = 0.07

    def _fit(self, train: Labelled, val: Labelled) -> None:
        grid = sorted({min(k, len(train[0])) for k in self.k})
        self._bank = [self._part(*train)]
        right, done = np.zeros(len(grid)), 0
        for block in blocks(val[0], self.device):
            y = torch.from_numpy(val[1][done : done + len(block)]).to(self.device)
            near = self._neighbours(block, grid[-1])
            right += [int((self._votes(*near, k).argmax(1) == y).sum()) for k in grid]
            done += len(block)
            self._advance(done, len(val[0]))
        best = int(right.argmax())
        self._k = grid[best]
        self._bank.append(self._part(*val))
        could_grow = best == len(grid) - 1 and self._k < len(train[0])
        self.report |= {
            "selected": {"k": self._k, "temperature": self.temperature},
            "selected_on": "val",
            "grid": grid,
            "val_scores": (100 * right / len(val[0])).tolist(),
            "grid_edge": len(grid) > 1 and (could_grow or (best == 0 and self._k > 1)),
        }
        if max(self.k) > len(train[0]):
            self.report["notes"].append(f"k above {len(train[0])}, the number of training images, was clipped to it")
        if self.report["grid_edge"]:
            self.report["notes"].append(f"k={self._k} lies at the edge of the grid")

    def _scores(self, X: Tensor) -> Tensor:
        return self._votes(*self._neighbours(X, self._k), self._k)

    def _part(self, X: np.ndarray, y: np.ndarray) -> tuple[Rows, Tensor]:
        return Rows(X, self.device), torch.from_numpy(y).to(self.device)

    def _neighbours(self, X: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Similarities and labels (b, k) of the k nearest rows of the bank, nearest first."""
        X = F.normalize(X)
        # The first k columns hold the best so far; a block of the bank comes beside them, and the best of all move to the left.
        board = X.new_full((len(X), k + min(BANK_BLOCK, max(len(rows) for rows, _ in self._bank))), -torch.inf)
        label = torch.zeros(len(X), k, dtype=torch.int64, device=X.device)
        for rows, y in self._bank:
            start = 0
            for block in rows.blocks(BANK_BLOCK):
                filled = board[:, : k + len(block)]
                torch.mm(X, F.normalize(block).T, out=filled[:, k:])
                board[:, :k], place = filled.topk(k)
                new = y[(start + place - k).clamp(min=0)]
                label = torch.where(place < k, label.gather(1, place.clamp(max=k - 1)), new)
                start += len(block)
        if not board[:, 0].isfinite().all():  # NaN counts as the largest
            raise RingbenchError("kNN probe: the features hold NaN or infinity; extract them again")
        return board[:, :k], label

    def _votes(self, similarity: Tensor, label: Tensor, k: int) -> Tensor:
        """Votes (b, C) of the first k neighbours."""
        weight = ((similarity[:, :k] - similarity[:, :1]) / self.temperature).exp()
        return weight.new_zeros(len(weight), self.n_classes).scatter_add_(1, label[:, :k], weight)
