"""Gaussian blur of a batch, each image with its own width, as two matrix products per image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.views.step import Parameters, Step, separable, uniform


@dataclass(frozen=True)
class Blur(Step):
    """Gaussian of a standard deviation in `sigma`, in pixels, cut off beyond `radius` pixels; images reflected at the border."""

    radius: int
    sigma: tuple[float, float] = (0.1, 2.0)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        return {"sigma": uniform(shape[:1], *self.sigma, generator).float()}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        sigma = parameters["sigma"].to(x.device)
        rows, columns = (self._weights(pixels, sigma) for pixels in x.shape[2:])
        return separable(x, rows, columns)

    def _weights(self, pixels: int, sigma: Tensor) -> Tensor:
        """(n, pixels, pixels): what pixel j gives to pixel i, directly and through its mirror images beyond both borders."""
        i, j = torch.arange(pixels, device=sigma.device).view(-1, 1), torch.arange(pixels, device=sigma.device)
        last = pixels - 1
        direct = self._gauss(i - j, sigma)
        before, after = self._gauss(i + j, sigma) * (j > 0), self._gauss(2 * last - i - j, sigma) * (j < last)
        weights = direct.add_(before).add_(after)
        return weights.div_(weights.sum(2, keepdim=True))

    def _gauss(self, distance: Tensor, sigma: Tensor) -> Tensor:
        return torch.exp(-((distance / sigma.view(-1, 1, 1)) ** 2) / 2).mul_(distance.abs() <= self.radius)
