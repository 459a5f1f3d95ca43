"""Are these the inputs the network was trained on? Their statistics at a batch norm against those it remembers.

Each channel of a batch norm remembers a Gaussian, its running mean and variance. The distance is KL(inputs || remembered) in nats,
the median over channels, which a few dead channels do not move. It tells ranges and normalisations apart. It hardly sees the
order of colours (0.01 to 0.05 more), and not at all how images were cut or enlarged.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backbones.trunk import FrozenBackbone, TensorSteps, Trunk, TwoStream

# Calibrated on six sets of photographs, textures, traffic signs and blood cells with trained and with random first layers:
# the right steps stay below 0.21 for natural images (up to 1.2 for blood cells), a confusion of 0..1 with ImageNet's
# normalisation lies at 0.87 to 10, pixels in 0..255 beyond 1000. Blood cells under the right steps fit no other of these steps
# better; with normalize(half) among them they would, since they are as pale as that makes other images.
SUSPECT = 0.5
CLEARLY = 3.0  # times as near must another choice be

Steps = tuple[bool, tuple[float, ...] | None, tuple[float, ...] | None]  # scale01, mean, std, as FrozenBackbone.for_inputs
CHOICES: dict[str, Steps] = {
    "scale01|normalize(imagenet)": (True, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "scale01": (True, None, None),
    "normalize(123.675,116.28,103.53;1,1,1)": (False, (123.675, 116.28, 103.53), (1.0, 1.0, 1.0)),
    "pixels in 0..255": (False, None, None),
}


@dataclass(frozen=True)
class Drift:
    """`first` is the distance at the first batch norm, `stages` at the first one of each stage; `best` names the choice of tensor steps
    with the least distance at the first batch norm, `best_first`."""

    first: float
    stages: dict[str, float]
    best: str
    best_first: float

    @property
    def warning(self) -> str | None:
        if self.first < SUSPECT or self.best_first * CLEARLY > self.first:
            return None
        return (
            f"inputs drift from those of training: {self.best} fits the first batch norm better, "
            f"{self.best_first:.2g} vs {self.first:.2g}"
        )


@torch.no_grad()
def drift(backbone: FrozenBackbone, images: Tensor, *, batch: int = 32) -> Drift:
    """Measure the tensor steps of `backbone` on uint8 `images` (N, 3, H, W), about 256 of them, in its colour order."""
    trunk = copy.deepcopy(backbone.trunk).to(backbone.device)
    first = _first(trunk, (backbone.prepare(part) for part in images.split(batch)))
    choices = {}
    for name, (scale01, mean, std) in CHOICES.items():
        other = TensorSteps(scale01, mean, std, backbone.device)
        choices[name] = _first(trunk, (other(part) for part in images.split(batch)))
    best = min(choices, key=choices.__getitem__)
    stages = _stages(trunk, (backbone.prepare(part) for part in images.split(batch)))
    return Drift(first, stages, best, choices[best])


class _Moments:
    """Mean and variance of each channel over all batches of inputs to one norm, in float64."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self.norm, self.count, self.sum, self.squares = norm, 0, 0.0, 0.0

    def add(self, inputs: Tensor) -> None:
        values = inputs.double().transpose(0, 1).flatten(1)
        self.count += values.shape[1]
        self.sum = self.sum + values.sum(1)
        self.squares = self.squares + values.square().sum(1)

    def distances(self) -> Tensor:
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean.square()).clamp_min(0) + self.norm.eps
        remembered = self.norm.running_var.double() + self.norm.eps
        ratio = variance / remembered
        return 0.5 * ((mean - self.norm.running_mean).square() / remembered + ratio - 1 - ratio.log())


def _first(trunk: Trunk | TwoStream, batches: Iterable[Tensor]) -> float:
    moments: dict[nn.Module, _Moments] = {}
    for batch in batches:
        for norm, inputs in trunk.first_norms(batch):
            moments.setdefault(norm, _Moments(norm)).add(inputs)
    return _median(moments.values())


def _stages(trunk: Trunk | TwoStream, batches: Iterable[Tensor]) -> dict[str, float]:
    found: dict[str, list[_Moments]] = {}
    for name, module in trunk.named_modules():
        stage = name.removesuffix(".0.bn1")
        if stage != name:
            moments = _Moments(module)
            found.setdefault(f"res{int(stage[-1]) + 1}", []).append(moments)
            module.register_forward_pre_hook(lambda _, inputs, moments=moments: moments.add(inputs[0]))
    for batch in batches:
        trunk(batch)
    return {level: _median(moments) for level, moments in found.items()}


def _median(moments: Iterable[_Moments]) -> float:
    return torch.cat([each.distances() for each in moments]).median().item()
