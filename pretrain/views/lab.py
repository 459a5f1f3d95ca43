"""CMC's two views: lightness and colour of one image (Tian et al. 2020, "Contrastive Multiview Coding")."""

import torch
from torch import Tensor

from pretrain.views.step import Parameters, Step

LINEAR_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
D65 = (0.95047, 1.0, 1.08883)  # white of the 2 degree observer
MEAN, STD = (50.0, 6.025, -6.6895), (50.0, 92.208, 101.1675)  # HobbitLong/CMC: centre and half-width of each channel's range


class Lab(Step):
    """sRGB in 0..1 -> CIE L*a*b*, each channel in about -1..1: the first is the view L, the other two are the view ab."""

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        mean, std = (x.new_tensor(numbers).view(3, 1, 1) for numbers in (MEAN, STD))
        return rgb_to_lab(x).sub_(mean).div_(std)

    def __repr__(self) -> str:
        return "Lab()"


def rgb_to_lab(x: Tensor) -> Tensor:
    """sRGB (n, 3, H, W) in 0..1 -> L in 0..100, a, b; with the constants of scikit-image, which CMC uses."""
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055).pow(2.4), x / 12.92)
    xyz = torch.einsum("oc,nchw->nohw", x.new_tensor(LINEAR_TO_XYZ), linear) / x.new_tensor(D65).view(3, 1, 1)
    fx, fy, fz = torch.where(xyz > 0.008856, xyz.pow(1 / 3), 7.787 * xyz + 16 / 116).unbind(1)
    return torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], 1)
