"""SGD, LARS and AdamW, and the learning rate of every step."""

import math

import torch
from torch import Tensor, nn

from pretrain.spec import Recipe


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose every tensor moves in proportion to its norm: You et al. 2017 (arXiv 1708.03888).

        g <- g + wd * w;   g <- g * trust * |w| / |g|;   v <- m v + g;   w <- w - lr v

    As in SimCLR, tensors of one dimension (biases, batch norm) get neither the weight decay nor the scaling.
    """

    def __init__(self, params, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad
                if w.ndim > 1:
                    g = g + group["weight_decay"] * w
                    g = g * _ratio(w.norm(), g.norm(), group["trust"])
                v = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
                v.mul_(group["momentum"]).add_(g)
                w.sub_(group["lr"] * v)


def _ratio(weight: Tensor, gradient: Tensor, trust: float) -> Tensor:
    both = (weight > 0) & (gradient > 0)
    return torch.where(both, trust * weight / gradient.clamp_min(1e-30), torch.ones_like(weight))


def make(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in module.parameters() if p.requires_grad]
    shared = {"lr": peak_rate(recipe), "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "lars":
        return LARS(trained, momentum=recipe.momentum, **shared)
    shared["fused"] = trained[0].device.type in ("cpu", "cuda")  # one pass over the weights, a third of the time
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(trained, betas=(recipe.momentum, 0.999), **shared)
    return torch.optim.SGD(trained, momentum=recipe.momentum, **shared)


def peak_rate(recipe: Recipe) -> float:
    """lr * batch_size / lr_batch: the linear rule of Goyal et al. 2017 (arXiv 1706.02677)."""
    return recipe.lr * recipe.batch_size / recipe.lr_batch


def rate(recipe: Recipe, epoch: float) -> float:
    """The learning rate after `epoch` epochs, which may be a fraction: warm-up from 0, then the schedule.

    `step` divides by ten at each of `drops` (rounded to whole epochs), `cosine` goes to 0 at the end.
    """
    if epoch < recipe.warmup_epochs:
        return peak_rate(recipe) * epoch / recipe.warmup_epochs
    match recipe.schedule:
        case "step":
            return peak_rate(recipe) * 0.1 ** sum(epoch >= round(drop * recipe.epochs) for drop in recipe.drops)
        case "cosine":
            done = (epoch - recipe.warmup_epochs) / max(recipe.epochs - recipe.warmup_epochs, 1e-9)
            return peak_rate(recipe) * (1 + math.cos(math.pi * min(done, 1))) / 2
    return peak_rate(recipe)
