"""How pixels enter the stages: the parts of a ResNet in which trained networks differ although their tensors do not tell.

imagenet    7x7 convolution of stride 2, max pooling of stride 2 (He et al. 2016, table 1)
same_pool   the same, max pooling padded as TensorFlow's SAME does (google-research/simclr, resnet.py)
same        as `same_pool`, and every other layer of stride 2 is padded so too (dm-haiku's ResNet, which BYOL uses)
cifar       3x3 convolution of stride 1, no pooling (Chen et al. 2020, SimCLR, appendix B.9)
cifar_pad2  the same padded by 2 instead of 1: 32 pixels become 34 (solo-learn, solo/methods/base.py)
cifar_s2    the same of stride 2: a quarter of the work, for training small images on a CPU
lab, ydbdr  two `imagenet` streams, one on lightness, one on the two colour channels (Tian et al. 2020, CMC)
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

STREAMS = {"l_to_ab": 1, "ab_to_l": 2}  # the two networks of CMC by their names in its code, and their input channels
LAB_MEAN, LAB_STD = (50.0, 6.025, -6.6895), (50.0, 92.208, 101.1675)  # HobbitLong/CMC: centre, half-width of each channel's range


def _same_padding(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Zeros around x as TensorFlow's SAME puts them: in all max((ceil(n / stride) - 1) stride + kernel - n, 0), the odd one
    last, where torch pads both sides alike."""
    padding = []
    for n in (x.shape[3], x.shape[2]):
        total = max((-(-n // stride) - 1) * stride + kernel - n, 0)
        padding += [total // 2, total - total // 2]
    return functional.pad(x, padding)


class SameConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        x = _same_padding(x, self.kernel_size[0], self.stride[0])
        return functional.conv2d(x, self.weight, self.bias, self.stride)


class SameMaxPool2d(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:  # after a ReLU, where padding by zeros is padding by minus infinity
        return functional.max_pool2d(_same_padding(x, self.kernel_size, self.stride), self.kernel_size, self.stride)


def convolution(channels: int, out: int, kernel: int = 7, stride: int = 2, padding: int = 3) -> nn.Conv2d:
    """The first convolution, initialised as torchvision does."""
    first = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    return first


def fit(network: nn.Module, stem: str, channels: int) -> None:
    """Turn torchvision's ResNet, as it is built, into the one that `stem` stands for, with an input of so many channels."""
    if stem.startswith("cifar"):
        stride, padding = 2 if stem == "cifar_s2" else 1, 2 if stem == "cifar_pad2" else 1
        network.conv1 = convolution(channels, network.conv1.out_channels, 3, stride, padding)
        network.maxpool = nn.Identity()
    elif channels != 3:
        network.conv1 = convolution(channels, network.conv1.out_channels)
    if stem in ("same_pool", "same"):
        network.maxpool = SameMaxPool2d(3, 2)
    if stem == "same":
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
                module.__class__ = SameConv2d


def split_colours(images: Tensor, stem: str) -> tuple[Tensor, Tensor]:
    """RGB in 0..1 (N, 3, H, W) -> lightness (N, 1, H, W) and colour (N, 2, H, W), normalised as the authors did."""
    if stem == "lab":  # HobbitLong/CMC, LinearProbing.py
        colours, mean, std = lab(images), LAB_MEAN, LAB_STD
    else:  # HobbitLong/PyContrast, pycontrast/datasets/util.py
        colours, mean, std = ydbdr(images), (0.457, -0.082, -0.052), (0.5, 1.331, 1.333)
    mean, std = (images.new_tensor(numbers).view(1, 3, 1, 1) for numbers in (mean, std))
    colours = (colours - mean) / std
    return colours[:, :1], colours[:, 1:]


def lab(images: Tensor) -> Tensor:
    """sRGB in 0..1 -> CIE L*a*b* (D65, 2 degrees); constants and rounding of the thresholds as in skimage.color.rgb2lab."""
    linear = torch.where(images > 0.04045, ((images + 0.055) / 1.055) ** 2.4, images / 12.92)
    xyz = _mix(linear, [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
    xyz = xyz / images.new_tensor((0.95047, 1.0, 1.08883)).view(1, 3, 1, 1)
    x, y, z = torch.where(xyz > 0.008856, xyz.clamp_min(1e-9) ** (1 / 3), 7.787 * xyz + 16 / 116).unbind(1)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), dim=1)


def ydbdr(images: Tensor) -> Tensor:
    """RGB in 0..1 -> YDbDr, as skimage.color.rgb2ydbdr."""
    return _mix(images, [[0.299, 0.587, 0.114], [-0.45, -0.883, 1.333], [-1.333, 1.116, 0.217]])


def _mix(images: Tensor, matrix: list[list[float]]) -> Tensor:
    return torch.einsum("oc,nchw->nohw", images.new_tensor(matrix), images)
