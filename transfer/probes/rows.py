"""Rows of a feature matrix as float32 tensors on a device, whether the matrix fits into its memory or not."""

import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**24  # elements of a block: 64 MiB of float32


def blocks(X: np.ndarray, device: str | torch.device, most: int = 2048) -> Iterator[Tensor]:
    """X (n, d) in order, as many rows at a time as fill 64 MiB, but at most `most`."""
    for start, stop in _bounds(X, most):
        yield _tensor(X[start:stop]).to(device).float()


class Rows:
    """The rows of X (n, d), held on `device` in their own precision if they fit, else read from where they lie.

    They fit if they take at most a quarter of the main memory, or half of what is free on a CUDA device.
    An array that is in main memory already is used as it is.
    """

    def __init__(self, X: np.ndarray, device: str | torch.device):
        self.X, self.device, self.held = X, torch.device(device), None
        if self.device.type == "cpu" and X.flags.writeable and not isinstance(X, np.memmap):
            self.held = torch.from_numpy(X)
        elif X.nbytes <= _budget(self.device):
            self.held = torch.empty(X.shape, dtype=_tensor(X[:0]).dtype, device=self.device)
            for start, stop in _bounds(X, len(X)):
                self.held[start:stop] = _tensor(X[start:stop])
        self._buffers: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.X)

    def blocks(self, most: int) -> Iterator[Tensor]:
        """All rows in order, at most `most` at a time."""
        if self.held is None:
            return blocks(self.X, self.device, most)
        return (self.held[start:stop].float() for start, stop in _bounds(self.X, most))

    def take(self, index: Tensor) -> Tensor:
        """The rows `index` (b,), ascending. The next call overwrites them: on a CPU, fresh memory costs more than the copy."""
        if self.held is None:
            return _tensor(self.X[index.numpy()]).to(self.device).float()
        b = len(index)
        if not self._buffers or len(self._buffers[0]) < b:
            self._buffers = [self.held.new_empty(b, self.held.shape[1], dtype=t) for t in (self.held.dtype, torch.float32)]
        own, wide = (buffer[:b] for buffer in self._buffers)
        torch.index_select(self.held, 0, index.to(self.device), out=own)
        return own if own.dtype == torch.float32 else wide.copy_(own)


def _bounds(X: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    rows = max(1, min(most, BLOCK // X.shape[1]))
    return ((start, min(start + rows, len(X))) for start in range(0, len(X), rows))


def _tensor(part: np.ndarray) -> Tensor:
    """A copy, since torch warns of memory it may not write to."""
    return torch.from_numpy(np.array(part))


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
