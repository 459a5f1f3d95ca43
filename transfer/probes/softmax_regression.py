"""L2-regularised softmax regression, solved for many strengths of the penalty at once.

    J(W, b) = 1/n * [ sum_i -log softmax(W z_i + b)[y_i]  +  l2/2 * ||W||^2 ]        (the bias is free)

The columns of Z must be uncorrelated (a rotation of the features: it changes neither the penalty nor the optimum). Then the
Hessian is close to diagonal, and L-BFGS preconditioned by that diagonal needs a few dozen steps where the plain method needs
hundreds. All strengths of one call share the two matrix products of a step; each keeps its own curvature and step length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**22  # logits computed at a time: bounds the memory, and stays near the cache


@dataclass
class Problem:
    """Z (n, r) with a last column of ones for the bias, y (n,) classes, variance (r,) mean square of each column of Z."""

    Z: Tensor
    y: Tensor
    variance: Tensor
    n_classes: int

    def prior(self) -> Tensor:
        """(C, r): no weights, and the bias that predicts the class frequencies: the optimum of an infinite penalty."""
        W = self.Z.new_zeros(self.n_classes, self.Z.shape[1])
        W[:, -1] = torch.bincount(self.y, minlength=self.n_classes).log()
        W[:, -1] -= W[:, -1].mean()
        return W

    def penalty(self, l2: Tensor) -> Tensor:
        """(G, 1, r): the penalty's share of the Hessian's diagonal, 0 for the bias."""
        ridge = (l2 / len(self.Z))[:, None].repeat(1, self.Z.shape[1])
        ridge[:, -1] = 0
        return ridge[:, None]

    def spread(self, W: Tensor) -> Tensor:
        """(C,): mean over the images of p (1 - p), the weight of each class in the Hessian, at one W (C, r)."""
        total = 0
        for Z in self.Z.split(max(1, BLOCK // self.n_classes)):
            p = (W @ Z.T).softmax(0)
            total = total + (p - p * p).sum(1)
        return total / len(self.Z)

    def objective(self, W: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
        """J (G,) and its gradient (G, C, r) at W (G, C, r)."""
        G, C, r = W.shape
        flat, value, gradient = W.view(G * C, r), 0, 0
        for Z, y in zip(*(t.split(max(1, BLOCK // (G * C))) for t in (self.Z, self.y)), strict=True):
            index = y.expand(G, 1, -1)
            p = (flat @ Z.T).view(G, C, -1)
            top, own = p.amax(1, keepdim=True), p.gather(1, index)
            mass = p.sub_(top).exp_().sum(1, keepdim=True)
            value = value + (mass.log() + top - own).sum((1, 2), dtype=torch.float64)
            p.div_(mass).scatter_add_(1, index, own.new_full((), -1).expand_as(own))
            gradient = gradient + p.view(G * C, -1) @ Z
        n = len(self.Z)
        shrunk = ridge * W
        value = value / n + (shrunk * W).sum((1, 2), dtype=torch.float64) / 2
        return value, (gradient / n).view(G, C, r) + shrunk


def solve(problem, l2, start, tol, max_iter, memory=10):
    """Minimise J for each of `l2` (G,), all from `start` (C, r)."""
    G = len(l2)
    ridge = problem.penalty(l2)
    scale = 1 / (problem.spread(start)[:, None] * problem.variance + ridge).clamp_min(torch.finfo(torch.float32).tiny)
    scale = scale.flatten(1)
    shape = start.shape
    W = start.flatten().repeat(G, 1)
    J, g = problem.objective(W.view(G, *shape), ridge)
    g = g.flatten(1)
    S = Y = W.new_zeros(G, 0, W.shape[1])
    gamma = torch.ones_like(l2)
    step = torch.ones_like(l2)
    p = -scale * g
    out, conv, its = W.clone(), torch.zeros(G, dtype=torch.bool), 0
    Jout = J.clone()
    idx = torch.arange(G)
    tot = 0
    while True:
        done = g.view(-1, *shape).norm(dim=2).amax(1) <= tol
        if done.any() or its >= max_iter:
            out[idx] = W
            conv[idx] = done
            Jout[idx] = J
            if done.all() or its >= max_iter:
                break
            k = ~done
            idx, W, J, g, S, Y, gamma, step, p, scale, ridge = (t[k] for t in (idx, W, J, g, S, Y, gamma, step, p, scale, ridge))
        slope = (p * g).sum(1)
        move = step[:, None] * p
        Wn = W + move
        Jn, gn = problem.objective(Wn.view(-1, *shape), ridge)
        gn = gn.flatten(1)
        its += 1
        tot += len(W)
        sn = (p * gn).sum(1)
        ok = (Jn <= J + 1e-4 * step * slope) | ((Jn <= J + 1e-6) & (sn <= -0.8 * slope))
        # Armijo or
        s, y = move * ok[:, None], (gn - g) * ok[:, None]
        sy = (s * y).sum(1)
        gamma = torch.where(sy > 0, sy / (y * scale * y).sum(1), gamma)
        S = torch.cat((S[:, 1 - memory :], s[:, None]), 1)
        Y = torch.cat((Y[:, 1 - memory :], y[:, None]), 1)
        W = torch.where(ok[:, None], Wn, W)
        g = torch.where(ok[:, None], gn, g)
        J = torch.where(ok, Jn, J)
        step = torch.where(ok, 1, step * (slope / (slope - sn)).clamp(0.1, 0.5))
        p = torch.where(ok[:, None], -direction(g, S, Y, gamma, scale), p)
    solve.passes += its
    solve.tot += tot
    return out.view(G, *shape), Jout, conv


solve.passes = solve.tot = 0


def direction(g, S, Y, gamma, scale):
    SY = S @ Y.mT
    curvature = SY.diagonal(dim1=1, dim2=2)
    R = SY.triu() + torch.diag_embed((curvature == 0).to(SY.dtype))
    a = torch.linalg.solve_triangular(R, S @ g[:, :, None], upper=True)
    v = gamma[:, None, None] * scale[:, :, None] * (g[:, :, None] - Y.mT @ a)
    t = torch.linalg.solve_triangular(R.mT, curvature[:, :, None] * a - Y @ v, upper=False)
    return (v + S.mT @ t).squeeze(2)
