"""CMC's two views: lightness and colour of one image (Tian et al. 2020, "Contrastive Multiview Coding")."""

from torch import Tensor

from backbones.stems import LAB_MEAN, LAB_STD, lab
from pretrain.views.step import Parameters, Step


class Lab(Step):
    """sRGB in 0..1 -> CIE L*a*b*, each channel in about -1..1: the first is the view L, the other two are the view ab."""

    def apply(self, x: Tensor, parameters: Parameters) -> Tensor:
        mean, std = (x.new_tensor(numbers).view(3, 1, 1) for numbers in (LAB_MEAN, LAB_STD))
        return lab(x).sub_(mean).div_(std)

    def __repr__(self) -> str:
        return "Lab()"
