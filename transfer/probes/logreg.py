"""Logistic regression, its L2 penalty chosen on validation: the linear probe of CLIP, of ssl-transfer and of DINOv2."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from transfer.probes.base import STRICT, Labelled, Probe
from transfer.probes.basis import Basis
from transfer.probes.softmax_regression import BLOCK, Problem, path, solve


class Fit(NamedTuple):
    basis: Basis
    classes: Tensor  # (C,) those that occur
    W: Tensor  # (C, r + 1) weights of the basis's axes


@dataclass(config=STRICT)
class LogregProbe(Probe):
    """Multinomial logistic regression on standardised features, by L-BFGS along a path of L2 penalties.

    Minimises 1/n * [ sum of cross entropies + l2/2 * ||W||^2 ] with a free bias: scikit-learn's objective with C = 1/l2. (For two
    classes scikit-learn fits one vector w instead, which is this with C = 2/l2 and W = (-w/2, w/2).)

    Mean and standard deviation are those of the images fitted on; a constant feature is only centred. l2 = (start, stop, num) is
    a grid in equal log steps. The best on validation is taken, of equals the largest; then mean, deviation and weights are
    fitted again to train and validation together, and `converged` speaks of that fit. A class without images never wins.

    Made for pooled features: finding the principal axes takes O(min(n, d)^3).
    """

    needs_validation = True
    l2: tuple[PositiveFloat, PositiveFloat, PositiveInt] = (1e-6, 1e5, 45)
    max_iter: PositiveInt = 1000
    tol: PositiveFloat = 1e-4

    def _fit(self, train: Labelled, val: Labelled) -> None:
        grid = np.sort(np.geomspace(*self.l2))[::-1]  # strong to weak
        with _few_threads(work=train[0].size * max(32, self.n_classes)):
            right, reached, chosen = self._choose(grid, train, val)
            best = int(right.argmax())
            converged = self._refit(grid[best], chosen, train, val)
        self._advance(len(grid) + 1, len(grid) + 1)
        edge = len(grid) > 1 and best in (0, len(grid) - 1)
        self.report |= {
            "selected": {"l2": float(grid[best])},
            "selected_on": "val",
            "grid": grid[::-1].tolist(),
            "val_scores": (100 * right[::-1] / len(val[0])).tolist(),
            "grid_edge": edge,
            "converged": converged,
        }
        if edge:
            self.report["notes"].append(f"l2={grid[best]:.3g} lies at the edge of the grid")
        if not reached.all():
            share = f"{(~reached).sum()} of {len(grid)}"
            self.report["notes"].append(f"{share} penalties did not converge in {self.max_iter} evaluations")

    def _choose(self, grid: np.ndarray, train: Labelled, val: Labelled) -> tuple[np.ndarray, np.ndarray, Fit]:
        """For each penalty how many validation images it gets right and whether it converged; and the best fit."""
        basis, classes, problem = self._problem(train)
        Z, y = basis.rotated([val[0]]), torch.from_numpy(val[1]).to(self.device)
        right, reached, best = [], [], None
        for W, converged in path(problem, self._l2(grid), self.tol, self.max_iter):
            G, C, r = W.shape
            found = [(W.view(G * C, r) @ z.T).view(G, C, -1).argmax(1) for z in Z.split(max(1, BLOCK // (G * C)))]
            hits = (classes[torch.cat(found, 1)] == y).sum(1).tolist()
            if max(hits) > max(right, default=-1):
                best = Fit(basis, classes, W[hits.index(max(hits))])
            right += hits
            reached += converged.tolist()
            self._advance(len(right), len(grid) + 1)
        return np.array(right), np.array(reached), best

    def _refit(self, l2: float, chosen: Fit, *parts: Labelled) -> bool:
        """Fit on all parts, starting from the fit chosen; whether it converged."""
        self._basis, classes, problem = self._problem(*parts)
        start = problem.prior()
        start[torch.isin(classes, chosen.classes)] = self._basis.adopt(chosen.W, chosen.basis)
        (W,), (converged,) = solve(problem, self._l2([l2]), start[None], self.tol, self.max_iter)
        self.W = W.new_zeros(self.n_classes, self.n_features)
        self.b = W.new_full((self.n_classes,), torch.finfo(W.dtype).min)
        self.W[classes], self.b[classes] = self._basis.weights(W)
        return bool(converged)

    def _problem(self, *parts: Labelled) -> tuple[Basis, Tensor, Problem]:
        """The basis, the classes that occur, and the problem over these in that basis."""
        features = [X for X, _ in parts]
        basis = Basis(features, self.device)
        y = torch.from_numpy(np.concatenate([y for _, y in parts])).to(self.device)
        classes, y = y.unique(return_inverse=True)
        return basis, classes, Problem(basis.rotated(features), basis.variance, y, len(classes))

    def _l2(self, values: Sequence[float]) -> Tensor:
        return torch.tensor([*values], dtype=torch.float32, device=self.device)

    def _scores(self, X: Tensor) -> Tensor:
        return torch.addmm(self.b, self._basis.standard(X), self.W.T)


@contextlib.contextmanager
def _few_threads(work: int) -> Iterator[None]:
    """One thread for a small fit: its steps take a millisecond, and on a busy machine the wait for a second thread takes ten."""
    threads = torch.get_num_threads()
    if work <= 2**26:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
