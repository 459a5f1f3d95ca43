"""Random resized crop and horizontal flip of a batch, as two matrix products per image.

Resampling is linear and separable: view = rows @ image @ columns^T. The weights are those of antialiased bilinear
interpolation (PIL's, and torchvision's with antialias=True): a triangle around the centre of each new pixel, as wide as two
old or two new pixels, whichever are larger, cut off at the box and normalised. A flip is a mirrored order of the columns.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.views.step import Parameters, Step, moved, separable, uniform

TRIES = 10  # torchvision's: then it falls back to the largest central box of an allowed ratio


@dataclass(frozen=True)
class CropAndFlip(Step):
    """Images (n, 3, H, W) of uint8 -> float (n, 3, size, size) in 0..1.

    The box covers a share `scale` of the image and has a ratio width : height in `ratio`, log-uniform (Szegedy et al. 2015,
    "Going deeper with convolutions"; drawn as torchvision's RandomResizedCrop does).
    """

    size: int
    scale: tuple[float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        n, _, H, W = shape

        area = H * W * uniform((n, TRIES), *self.scale, generator)
        ratio = uniform((n, TRIES), *map(math.log, self.ratio), generator).exp()
        widest, tallest = min(W, round(H * self.ratio[1])), min(H, round(W / self.ratio[0]))
        width = torch.cat([(area * ratio).sqrt().round(), torch.full((n, 1), widest)], 1).long()
        height = torch.cat([(area / ratio).sqrt().round(), torch.full((n, 1), tallest)], 1).long()
        fits = (width > 0) & (width <= W) & (height > 0) & (height <= H)
        first = fits.byte().argmax(1, keepdim=True)
        width, height = width.gather(1, first).squeeze(1), height.gather(1, first).squeeze(1)
        central = first.squeeze(1) == TRIES
        down, right, mirror = uniform((3, n), 0, 1, generator)
        return {
            "top": torch.where(central, (H - height) // 2, (down * (H - height + 1)).long()),
            "left": torch.where(central, (W - width) // 2, (right * (W - width + 1)).long()),
            "height": height,
            "width": width,
            "flip": mirror < self.flip,
        }

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        top, left, height, width, flip = moved(parameters, x.device, "top", "left", "height", "width", "flip")
        rows = resampling(x.shape[2], top, height, self.size)
        columns = resampling(x.shape[3], left, width, self.size, flip)
        return separable(x.float(), rows.div_(255), columns)


def resampling(pixels: int, start: Tensor, length: Tensor, size: int, mirrored: Tensor | None = None) -> Tensor:
    """Weights (n, size, pixels) that resize the pixels start <= j < start + length of an axis to `size` new ones."""
    start, length = start.float().view(-1, 1, 1), length.float().view(-1, 1, 1)
    j = torch.arange(pixels, device=start.device) - start
    i = torch.arange(size, device=start.device).view(-1, 1)
    if mirrored is not None:
        i = torch.where(mirrored.view(-1, 1, 1), size - 1 - i, i)
    # Centres of old and new pixels, times twice the size: whole numbers, which float32 holds exactly.
    old = torch.where((j >= 0) & (j < length), (2 * j + 1) * size, math.inf)
    new = (2 * i + 1) * length
    weights = (old - new).abs_().div_(-2 * length.clamp_min(size)).add_(1).clamp_min_(0)
    return weights.div_(weights.sum(2, keepdim=True))
