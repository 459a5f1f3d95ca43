"""Networks with something to get wrong."""

import torch
from torch import nn


def lively(network: nn.Module, seed: int = 1) -> nn.Module:
    """`network` with batch norms that are not the identity, so that folding and freezing have something to get wrong."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.2, generator=generator)
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return network.eval()
