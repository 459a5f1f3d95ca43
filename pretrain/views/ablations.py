"""Transforms that contrastive learning is compared with and without, beside those of the families.

"Understanding Self-supervised Contrastive Learning through Supervised Objectives" (TMLR 2025, arXiv 2510.10572) adds them to
SimCLR's family without giving their strength: those below are the ones of each transform's own source.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.views.step import Parameters, Step, moved


@dataclass(frozen=True)
class Cutout(Step):
    """A square of half the image's side, centred on any pixel, takes the colour `fill` (DeVries and Taylor 2017)."""

    fill: tuple[float, float, float]

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        n, _, H, W = shape
        return {"row": torch.randint(H, (n,), generator=generator), "column": torch.randint(W, (n,), generator=generator)}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        row, column = moved(parameters, x.device, "row", "column")
        inside = self._within(row, x.shape[2])[:, None, :, None] & self._within(column, x.shape[3])[:, None, None, :]
        return torch.where(inside, x.new_tensor(self.fill).view(3, 1, 1), x)

    @staticmethod
    def _within(centre: Tensor, pixels: int) -> Tensor:
        offset = torch.arange(pixels, device=centre.device) - centre[:, None]
        return (offset >= -(pixels // 4)) & (offset < pixels // 4)


@dataclass(frozen=True)
class Rotation(Step):
    """A turn by 0, 90, 180 or 270 degrees of square images (Gidaris et al. 2018)."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        return {"quarters": torch.randint(4, shape[:1], generator=generator)}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        quarters = parameters["quarters"].to(x.device).view(-1, 1, 1, 1)
        x = torch.where(quarters >= 2, x.flip(2, 3), x)
        return torch.where(quarters % 2 == 1, x.rot90(dims=(2, 3)), x)


@dataclass(frozen=True)
class Noise(Step):
    """Gaussian noise of standard deviation `sigma`, clipped to 0..1 (torchvision's GaussianNoise and its default)."""

    sigma: float = 0.1

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        return {"noise": self.sigma * torch.randn(shape, generator=generator)}

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        return x.add_(parameters["noise"].to(x.device)).clamp_(0, 1)
