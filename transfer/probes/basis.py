"""Standardised features in the basis of their principal axes, where they are uncorrelated."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ringbench.errors import RingbenchError
from transfer.probes.rows import BLOCK, blocks


class Basis:
    """x -> V' (x - mean) / std, for the mean, std and principal axes V (d, r) of the rows of some arrays taken together.

    V is orthonormal and spans all that the rows span: a penalty on the weights is the same in either basis. A last axis of ones
    stands for the bias. `variance` (r + 1,) is the mean square along each axis. All is found in blocks and in float64, on the
    CPU where the device has none.
    """

    def __init__(self, parts: list[np.ndarray], device: str | torch.device):
        self.device = torch.device(device)
        self.exact = torch.device("cpu") if self.device.type == "mps" else self.device
        n, d = sum(map(len, parts)), parts[0].shape[1]
        self.mean = sum(x.sum(0) for x in self._rows(parts)) / n
        if not self.mean.isfinite().all():
            raise RingbenchError("logistic regression: the features hold NaN or infinity; extract them again")
        self.std = (sum((x - self.mean).square().sum(0) for x in self._rows(parts)) / n).sqrt()
        self.std[self.std <= 1e-12 * self.mean.abs()] = 1  # constant but for rounding
        if d <= n:
            square, axes = torch.linalg.eigh(sum(x.T @ x for x in map(self._standard, self._rows(parts))))
            kept = square > 1e-12 * square[-1]
            self.V = axes[:, kept]
        else:  # the same axes from the smaller matrix of products of rows
            square, axes = torch.linalg.eigh(sum(x @ x.T for x in self._columns(parts)))
            kept = square > 1e-12 * square[-1]
            axes = axes[:, kept] / square[kept].sqrt()
            self.V = torch.cat([x.T @ axes for x in self._columns(parts)])
        self.V = self.V.float().to(self.device)
        self.variance = torch.cat((square[kept] / n, square.new_ones(1))).float().to(self.device)

    def standard(self, X: Tensor) -> Tensor:
        """(b, d) float32 on the device, standardised."""
        return self._standard(X.to(self.exact).double()).float().to(self.device)

    def rotated(self, parts: list[np.ndarray]) -> Tensor:
        """All rows (n, r + 1) in the basis."""
        Z = [self.standard(block) @ self.V for part in parts for block in blocks(part, self.device)]
        return F.pad(torch.cat(Z), (0, 1), value=1.0)

    def weights(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (..., r + 1) of the axes as weights (..., d) of the standardised features, and the bias (...)."""
        return W[..., :-1] @ self.V.T, W[..., -1]

    def adopt(self, W: Tensor, other: "Basis") -> Tensor:
        """Weights (C, r' + 1) of the axes of another basis as weights (C, r + 1) of these axes, as well as these can."""
        weights, bias = other.weights(W)
        return torch.cat((weights * (self.std / other.std).to(W) @ self.V, bias[:, None]), 1)

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def _rows(self, parts: list[np.ndarray]) -> Iterator[Tensor]:
        return (block.double() for part in parts for block in blocks(part, self.exact))

    def _columns(self, parts: list[np.ndarray]) -> Iterator[Tensor]:
        """Standardised, (n, w) at a time."""
        n, d = sum(map(len, parts)), parts[0].shape[1]
        width = max(1, BLOCK // n)
        for start in range(0, d, width):
            some = slice(start, start + width)
            x = torch.from_numpy(np.concatenate([part[:, some] for part in parts])).to(self.exact).double()
            yield (x - self.mean[some]) / self.std[some]
