"""Are these the inputs the network was trained on? Their statistics at a batch norm against those it remembers.

Each channel of a batch norm remembers a Gaussian, its running mean and variance. The distance is KL(inputs || remembered) in
nats, the median over channels, which a few dead ones do not move. It tells ranges and normalisations apart. It hardly sees the
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
BATCH = 32

Steps = tuple[bool, tuple[float, ...] | None, tuple[float, ...] | None]  # scale01, mean, std, as FrozenBackbone.for_inputs
CHOICES: dict[str, Steps] = {
    "scale01|normalize(imagenet)": (True, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "scale01": (True, None, None),
    "normalize(123.675,116.28,103.53;1,1,1)": (False, (123.675, 116.28, 103.53), (1.0, 1.0, 1.0)),
    "pixels in 0..255": (False, None, None),
}


@dataclass(frozen=True)
class Drift:
    """`distance` is that of the inputs at the first batch norm; `best` names the tensor steps, those in use or one of CHOICES,
    under which it is least, `best_distance`."""

    distance: float
    best: str
    best_distance: float

    @property
    def warning(self) -> str | None:
        if self.distance < SUSPECT or self.best_distance * CLEARLY > self.distance:
            return None
        return (
            f"inputs drift from those of training: at the first batch norm {self.best} fits better, "
            f"{self.best_distance:.2g} vs {self.distance:.2g}"
        )


@torch.no_grad()
def drift(backbone: FrozenBackbone, images: Tensor) -> Drift:
    """Compare the tensor steps of `backbone` with the other CHOICES on uint8 `images` (N, 3, H, W), about 256 of them."""
    trunk = _on_device(backbone)
    steps = {name: TensorSteps(*choice, backbone.device) for name, choice in CHOICES.items()}
    distances = {"what is in use": _first(trunk, images, backbone.prepare)}
    distances |= {name: _first(trunk, images, prepare) for name, prepare in steps.items()}
    best = min(distances, key=distances.__getitem__)
    return Drift(distances["what is in use"], best, distances[best])


@torch.no_grad()
def by_stage(backbone: FrozenBackbone, images: Tensor) -> dict[str, float]:
    """The distance at the first batch norm of each stage, res2 .. res5, under the tensor steps of `backbone`."""
    trunk = _on_device(backbone)
    found: dict[str, list[_Moments]] = {}
    for name, module in trunk.named_modules():
        stage = name.removesuffix(".0.bn1")
        if stage != name:
            moments = _Moments(module)
            found.setdefault(f"res{int(stage[-1]) + 1}", []).append(moments)
            module.register_forward_pre_hook(lambda _, inputs, moments=moments: moments.add(inputs[0]))
    for batch in images.split(BATCH):
        trunk(backbone.prepare(batch))
    return {level: _median(moments) for level, moments in found.items()}


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


def _on_device(backbone: FrozenBackbone) -> Trunk | TwoStream:
    return copy.deepcopy(backbone.trunk).to(backbone.device)


def _first(trunk: Trunk | TwoStream, images: Tensor, prepare: TensorSteps) -> float:
    moments: dict[nn.Module, _Moments] = {}
    for batch in images.split(BATCH):
        for norm, inputs in trunk.first_norms(prepare(batch)):
            moments.setdefault(norm, _Moments(norm)).add(inputs)
    return _median(moments.values())


def _median(moments: Iterable[_Moments]) -> float:
    return torch.cat([each.distances() for each in moments]).median().item()
