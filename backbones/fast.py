"""What makes a frozen forward pass fast: batch norms become part of the convolutions before them."""

import copy

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fold_batch_norm(trunk: nn.Module) -> nn.Module:
    """A copy of `trunk` in which every batch norm that follows a convolution is folded into it.

    w' = w * gamma / sqrt(var + eps), b' = beta - mean * gamma / sqrt(var + eps): the result differs from the unfolded network
    by rounding only.
    """
    folded = copy.deepcopy(trunk).eval()
    for module in folded.modules():
        for convolution, norm in _convolution_norm_pairs(module):
            setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
        if isinstance(module, nn.Sequential) and len(module) == 2 and isinstance(module[1], nn.BatchNorm2d):  # downsample
            module[0], module[1] = fuse_conv_bn_eval(module[0], module[1]), nn.Identity()
    return folded.requires_grad_(False)


def _convolution_norm_pairs(module: nn.Module) -> list[tuple[str, str]]:
    names = dict(module.named_children())
    return [(f"conv{i}", f"bn{i}") for i in (1, 2, 3) if isinstance(names.get(f"bn{i}"), nn.BatchNorm2d)]
