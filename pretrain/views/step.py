"""What a random transform of a batch is: parameters drawn for each image, then applied to all images at once.

The two are apart so that a view can be repeated, compared with another implementation, or drawn for a batch that is spread
over ranks: draw for the whole batch, `select` the rank's rows. Parameters stay on the CPU, where the generator is, so that
every device makes the same views; a step takes along what it needs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Parameters = dict[str, Tensor]  # on the CPU, one row an image


def select(parameters: Parameters, rows: Tensor | slice) -> Parameters:
    return {name: values[rows] for name, values in parameters.items()}


def moved(parameters: Parameters, device: torch.device, *names: str) -> list[Tensor]:
    return [parameters[name].to(device) for name in names]


class Step:
    """A transform of float images (n, 3, H, W) in 0..1. One without `draw` has nothing random."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        """Parameters for images of the shape (n, 3, H, W)."""
        return {}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        """The transformed images; x may be written over."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sometimes(Step):
    """The step for each image with probability p, and its cost only for those images."""

    p: float
    step: Step

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        return {"applied": uniform(shape[:1], 0, 1, generator) < self.p, **self.step.draw(shape, generator)}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        rows = parameters["applied"].nonzero().squeeze(1)  # on the CPU, where it costs no wait for the device
        if len(rows):
            there = rows.to(x.device)
            x[there] = self.step.apply(x[there], select(parameters, rows))
        return x


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=generator)


def separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows @ x @ columns^T for each channel: (n, 3, H, W), weights (n, h, H) and (n, w, W) -> (n, 3, h, w)."""
    across = x.flatten(1, 2) @ columns.mT
    return rows[:, None] @ across.unflatten(1, x.shape[1:3])
