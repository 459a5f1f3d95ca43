"""Colour jitter, grayscale and normalisation of a batch; the arithmetic of torchvision on float images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.views.step import Parameters, Step, moved, uniform

LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601
CONTRAST, SATURATION = 1, 2  # and brightness, 0


@dataclass(frozen=True)
class Jitter(Step):
    """Brightness, contrast, saturation by factors in max(0, 1 - strength) .. 1 + strength, hue by a shift in turns within
    -strength .. strength, in an order drawn for each image from all 24.

    Brightness, contrast and saturation are affine in the colour of a pixel, so images that differ in which of them comes next
    share one matrix product. Hue is not, and dearer: it is computed once, with three turns for the others before it and three
    after it, of which each image uses those that its own order has there.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Parameters:
        n = shape[0]
        strengths = (self.brightness, self.contrast, self.saturation)
        factors = [uniform((n,), max(0, 1 - strength), 1 + strength, generator).float() for strength in strengths]
        return {
            "factors": torch.stack(factors, 1),  # (n, 3)
            "hue": uniform((n,), -self.hue, self.hue, generator).float(),
            "order": uniform((n, 3), 0, 1, generator).argsort(1),  # of the three, first to last
            "hue_after": torch.randint(4, (n,), generator=generator),  # how many of the three come before the hue
        }

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        factors, hue, order, hue_after = moved(parameters, x.device, "factors", "hue", "order", "hue_after")
        factor = factors.gather(1, order)
        early = torch.arange(3, device=x.device) < hue_after[:, None]
        turns = torch.cat([torch.where(early, factor, 1), torch.where(early, 1, factor)], 1)
        matrices, contrasts = blends(turns, order.repeat(1, 2))
        for turn in range(6):
            if turn == 3:
                x = shift_hue(x, hue)
            pixels = x.flatten(2)
            offset = contrasts[:, turn] @ pixels.mean(2, keepdim=True)
            x = torch.baddbmm(offset, matrices[:, turn], pixels).clamp_(0, 1).view_as(x)
        return x


def blends(factor: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """clamp(factor colour + (1 - factor) base) as clamp(matrix colour + contrast mean colour), both (..., 3, 3).

    The base is black (brightness), the gray of the mean colour (contrast) or of the pixel (saturation). A factor of 1 is the
    identity.
    """
    factor, kind = factor[..., None, None], kind[..., None, None]
    gray = (1 - factor) * factor.new_tensor(LUMA).expand(3, 3)
    return factor * torch.eye(3, device=factor.device) + (kind == SATURATION) * gray, (kind == CONTRAST) * gray


def shift_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Images (n, 3, H, W) with their hue in HSV moved on by so many turns (n,).

    The hue, a point on a hexagon, is +-(1 + (g + b - r - min) / chroma) / 6 turns away from red, on the side of green if g > b.
    A channel is max at up to a sixth of a turn from its own corner, min beyond two sixths, and linear in between.
    """
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    chroma = (high - low).clamp_min_(1e-12)  # a gray pixel stays gray whatever its hue
    r, g, b = x.split(1, dim=1)
    hue = (g + b).sub_(r).sub_(low).div_(chroma).add_(1).copysign_(g - b).div_(6).add_(turns.view(-1, 1, 1, 1))
    away = hue - x.new_tensor([0, 1 / 3, 2 / 3]).view(3, 1, 1)
    away.sub_(away.round()).abs_()
    return torch.addcmul(high, chroma, away.mul_(6).sub_(1).clamp_(0, 1), value=-1)


class Grayscale(Step):
    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        return torch.einsum("c,nchw->nhw", x.new_tensor(LUMA), x)[:, None].expand_as(x)

    def __repr__(self) -> str:
        return "Grayscale()"


@dataclass(frozen=True)
class Normalise(Step):
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        mean, std = (x.new_tensor(numbers).view(3, 1, 1) for numbers in (self.mean, self.std))
        return x.sub_(mean).div_(std)
