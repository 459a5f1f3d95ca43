"""L2-regularised softmax regression for a whole path of penalties, from strong to weak.

    J(W, b) = 1/n * [ sum_i -log softmax(W z_i + b)[y_i]  +  l2/2 * ||W||^2 ]        the bias b is free

The columns of Z must be uncorrelated; a rotation of the features makes them so without moving the optimum. The Hessian is then
close to its diagonal, and L-BFGS preconditioned by that diagonal takes a handful of steps where plain L-BFGS takes a hundred.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**22  # logits held at a time
MEMORY = 10  # steps that L-BFGS remembers


@dataclass
class Problem:
    """Z (n, r) float32, its last column ones for the bias; variance (r,), the mean square of each column; y (n,) in 0..C-1."""

    Z: Tensor
    variance: Tensor
    y: Tensor
    n_classes: int

    def prior(self) -> Tensor:
        """The optimum (C, r) of an infinite penalty: no weights, and the bias that gives the class frequencies."""
        W = self.Z.new_zeros(self.n_classes, self.Z.shape[1])
        W[:, -1] = torch.bincount(self.y, minlength=self.n_classes).log()
        W[:, -1] -= W[:, -1].mean()
        return W

    def ridge(self, l2: Tensor) -> Tensor:
        """The penalty's part (G, 1, r) of the Hessian's diagonal, for l2 (G,)."""
        ridge = (l2 / len(self.Z))[:, None, None].repeat(1, 1, self.Z.shape[1])
        ridge[:, :, -1] = 0
        return ridge

    def objective(self, W: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
        """J (G,) and its gradient (G, C, r) at W (G, C, r)."""
        G, C, r = W.shape
        loss, gradient = 0, 0
        for Z, y in self._blocks(G * C):
            label = y.expand(G, 1, -1)
            p = (W.view(G * C, r) @ Z.T).view(G, C, -1)
            top, own = p.amax(1, keepdim=True), p.gather(1, label)
            total = p.sub_(top).exp_().sum(1, keepdim=True)
            loss = loss + (total.log() + top - own).sum((1, 2))
            p.div_(total).scatter_add_(1, label, own.new_tensor(-1).expand_as(own))
            gradient = gradient + p.view(G * C, -1) @ Z
        n = len(self.Z)
        pull = ridge * W
        return loss / n + (pull * W).sum((1, 2)) / 2, gradient.view(G, C, r) / n + pull

    def curvature(self, W: Tensor) -> Tensor:
        """The Hessian's diagonal (C, r) at W (C, r), without the penalty, as if p (1 - p) did not depend on z."""
        weight = 0
        for Z, _ in self._blocks(self.n_classes):
            p = (W @ Z.T).softmax(0)
            weight = weight + (p - p * p).sum(1)
        # Where every image is fitted the weight vanishes; the floor keeps the first step finite.
        return (weight / len(self.Z)).clamp_min(1e-6)[:, None] * self.variance

    def _blocks(self, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = max(1, BLOCK // columns)
        return zip(self.Z.split(rows), self.y.split(rows), strict=True)


def path(problem: Problem, l2: Tensor, tol: float, max_iter: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (W (G, C, r), converged (G,)) for the penalties `l2` in turn, a few at a time; they fall by a constant factor.

    Each starts on the straight line, in log l2, through the two solutions before it, which saves two steps of three.
    """
    together = min(4, max(1, 40 // problem.n_classes))  # few classes alone do not fill a matrix product
    known: list[Tensor] = []
    for some in l2.split(together):
        ahead = torch.arange(1, len(some) + 1, device=l2.device)[:, None, None]
        if len(known) < 2:
            start = (known or [problem.prior()])[-1].expand(len(some), -1, -1)
        else:
            start = known[1] + ahead * (known[1] - known[0])
        W, converged = solve(problem, some, start.contiguous(), tol, max_iter)
        yield W, converged
        known = [*known, *W][-2:]


def solve(problem: Problem, l2: Tensor, start: Tensor, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Minimise J for each l2 (G,) from start (G, C, r): the solutions, and which of them converged.

    Converged: the gradient's 2-norm is <= tol, after at most `max_iter` evaluations. The norm does not see the rotation, and
    bounds the largest entry, which is what scikit-learn's `tol` looks at.
    """
    ridge = problem.ridge(l2)
    scale = 1 / (problem.curvature(start[0]) + ridge)
    W, (J, g) = start, problem.objective(start, ridge)
    S = Y = W.new_zeros(len(l2), 0, W[0].numel())
    gamma, step = torch.ones_like(l2), torch.ones_like(l2)
    p = -scale * g
    for _ in range(max_iter):
        done = g.flatten(1).norm(dim=1) <= tol
        if done.all():
            break
        W_new = W + _each(step) * p
        J_new, g_new = problem.objective(W_new, ridge)
        slope, slope_new = (p * g).sum((1, 2)), (p * g_new).sum((1, 2))
        # Armijo's condition or, where float32 no longer resolves J, the approximate Wolfe condition of Hager and Zhang (2005).
        better = (J_new <= J + 1e-4 * step * slope) | ((J_new <= J + 1e-6) & (slope_new <= -0.8 * slope))
        moved = _each(better & ~done)
        s, y = torch.where(moved, W_new - W, 0), torch.where(moved, g_new - g, 0)
        sy = (s * y).sum((1, 2))
        known = _each(sy > 0)  # a refused step, or one lost in rounding, enters the memory as zeros, which say nothing
        S, Y = (torch.cat((H[:, 1 - MEMORY :], (h * known).flatten(1)[:, None]), 1) for H, h in ((S, s), (Y, y)))
        gamma = torch.where(sy > 0, sy / (y * scale * y).sum((1, 2)), gamma)
        W, g, J = torch.where(moved, W_new, W), torch.where(moved, g_new, g), torch.where(moved.view(-1), J_new, J)
        p = -_inverse_hessian(S, Y, _each(gamma) * scale, g)
        # Refused: go where a parabola through the two slopes has its minimum.
        step = torch.where(better, 1, step * (slope / (slope - slope_new)).clamp(0.1, 0.5))
    W[:, :, -1] -= W[:, :, -1].mean(1, keepdim=True)  # the bias has meaning up to a constant alone
    return W, g.flatten(1).norm(dim=1) <= tol


def _inverse_hessian(S: Tensor, Y: Tensor, scale: Tensor, g: Tensor) -> Tensor:
    """The L-BFGS estimate of the inverse Hessian times g: the two-loop recursion (Nocedal and Wright, algorithm 7.4) as matrices.

    S, Y (G, m, D) oldest first; scale (G, C, r), the estimate before the first step; g (G, C, r).
    """
    SY = S @ Y.mT
    sy = SY.diagonal(dim1=1, dim2=2)
    R = SY.triu() + torch.diag_embed((sy == 0).to(SY))  # a step of zeros has no curvature, and needs none
    a = torch.linalg.solve_triangular(R, S @ g.flatten(1)[:, :, None], upper=True)
    v = scale.flatten(1)[:, :, None] * (g.flatten(1)[:, :, None] - Y.mT @ a)
    b = torch.linalg.solve_triangular(R.mT, sy[:, :, None] * a - Y @ v, upper=False)
    return (v + S.mT @ b).view_as(g)


def _each(x: Tensor) -> Tensor:
    return x[:, None, None]
