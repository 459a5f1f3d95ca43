"""The trunk every checkpoint is poured into, and the frozen extractor made of it."""

import copy
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models import resnet

from backbones import stems
from backbones.fast import fold_batch_norm
from backbones.spec import Arch, Stem
from ringbench.errors import RingbenchError, UsageError

LEVELS = ("res2", "res3", "res4", "res5", "prepool", "pooled")


class Layers(NamedTuple):
    """What sets one architecture apart: its block, how often it stands in each stage, and how many channels it has."""

    block: type[nn.Module]
    blocks: tuple[int, int, int, int]
    width: float = 1  # scales the channels of every layer; the stem keeps at least 64
    per_group: int = 64  # 128 in wide_resnet: of the 3x3 convolutions alone

    @property
    def stem(self) -> int:
        return max(64, int(64 * self.width))

    @property
    def first(self) -> int:
        """Output channels of the first convolution of the first block."""
        return int(64 * self.width) * self.per_group // 64


ARCHS: dict[Arch, Layers] = {
    "resnet18": Layers(resnet.BasicBlock, (2, 2, 2, 2)),
    "resnet34": Layers(resnet.BasicBlock, (3, 4, 6, 3)),
    "resnet50": Layers(resnet.Bottleneck, (3, 4, 6, 3)),
    "resnet101": Layers(resnet.Bottleneck, (3, 4, 23, 3)),
    "resnet152": Layers(resnet.Bottleneck, (3, 8, 36, 3)),
    "wide_resnet50_2": Layers(resnet.Bottleneck, (3, 4, 6, 3), per_group=128),
    "wide_resnet101_2": Layers(resnet.Bottleneck, (3, 4, 23, 3), per_group=128),
    "resnet50x2": Layers(resnet.Bottleneck, (3, 4, 6, 3), width=2),
    "resnet18x0.5": Layers(resnet.BasicBlock, (2, 2, 2, 2), width=0.5),
    "resnet50x0.5": Layers(resnet.Bottleneck, (3, 4, 6, 3), width=0.5),
}


class _ResNet(resnet.ResNet):
    """torchvision's ResNet, every layer of it `width` times as wide."""

    def __init__(self, layers: Layers) -> None:
        self._width, self._stem = layers.width, layers.stem
        super().__init__(layers.block, list(layers.blocks), width_per_group=layers.per_group)
        if layers.stem != 64:
            self.conv1, self.bn1 = stems.convolution(3, layers.stem), nn.BatchNorm2d(layers.stem)

    def _make_layer(self, block, planes, *args, **options) -> nn.Sequential:
        if planes == 64:  # the first stage: what comes in is the stem's
            self.inplanes = self._stem
        return super()._make_layer(block, int(planes * self._width), *args, **options)


class Trunk(nn.Module):
    """torchvision's ResNet without its classifier; tensor names are torchvision's (`conv1`, `bn1`, `layer1` .. `layer4`)."""

    def __init__(self, arch: Arch, stem: Stem = "imagenet", channels: int = 3) -> None:
        super().__init__()
        full = _ResNet(ARCHS[arch])
        stems.fit(full, stem, channels)
        self.conv1, self.bn1, self.relu, self.maxpool = full.conv1, full.bn1, full.relu, full.maxpool
        self.layer1, self.layer2, self.layer3, self.layer4 = full.layer1, full.layer2, full.layer3, full.layer4
        self.width = full.inplanes  # channels of res5: 512 or 2048

    def forward(self, images: Tensor, last: int = 5) -> dict[str, Tensor]:
        """Normalised images (N, 3, H, W) -> {"res2": (N, C, H/4, W/4), .., "res5": (N, C, H/32, W/32)}, or up to `last`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        stages = {}
        for level in range(2, last + 1):
            x = stages[f"res{level}"] = getattr(self, f"layer{level - 1}")(x)
        return stages

    def first_norms(self, images: Tensor) -> list[tuple[nn.BatchNorm2d, Tensor]]:
        """The batch norms that see the images first, each with its input."""
        return [(self.bn1, self.conv1(images))]


class TwoStream(nn.Module):
    """CMC's two encoders: `l_to_ab` sees lightness, `ab_to_l` colour; every level is the two side by side (2C channels)."""

    def __init__(self, arch: Arch, stem: Stem) -> None:
        super().__init__()
        self.stem = stem
        for name, channels in stems.STREAMS.items():
            self.add_module(name, Trunk(arch, "imagenet", channels))
        self.width = 2 * self.l_to_ab.width

    def forward(self, images: Tensor, last: int = 5) -> dict[str, Tensor]:
        """RGB images in 0..1 (N, 3, H, W) -> the levels of `Trunk`, twice as wide. Colours are converted in float32 at least."""
        lightness, colour = self._split(images)
        first, second = self.l_to_ab(lightness, last), self.ab_to_l(colour, last)
        return {level: torch.cat((first[level], second[level]), dim=1) for level in first}

    def first_norms(self, images: Tensor) -> list[tuple[nn.BatchNorm2d, Tensor]]:
        lightness, colour = self._split(images)
        return self.l_to_ab.first_norms(lightness) + self.ab_to_l.first_norms(colour)

    def _split(self, images: Tensor) -> tuple[Tensor, ...]:
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        with torch.autocast(images.device.type, enabled=False):
            return tuple(stream.to(images.dtype) for stream in stems.split_colours(exact, self.stem))


def build(arch: Arch, stem: Stem) -> Trunk | TwoStream:
    return TwoStream(arch, stem) if stem in ("lab", "ydbdr") else Trunk(arch, stem)


def random_trunk(arch: Arch, stem: Stem, seed: int) -> Trunk | TwoStream:
    """torchvision's initialisation from `seed`; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(arch, stem)


def trunk_sha256(trunk: nn.Module) -> str:
    """sha256 over the names, shapes and bytes of all parameters and buffers that a frozen forward pass reads.

    `num_batches_tracked` is left out: it counts training steps and many checkpoint layouts do not carry it.
    """
    sha = hashlib.sha256()
    for name, tensor in sorted(trunk.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            value = tensor.detach().to("cpu", torch.float32).contiguous()
            sha.update(f"{name}{tuple(value.shape)}".encode())
            sha.update(value.numpy().data)
    return sha.hexdigest()


class TensorSteps:
    """uint8 images (N, 3, H, W) -> float32 inputs of a trunk on `device`: pixels / 255 if `scale01`, then (x - mean) / std."""

    def __init__(
        self, scale01: bool, mean: Sequence[float] | None, std: Sequence[float] | None, device: torch.device | str
    ) -> None:
        # (x / 255 - mean) / std in one pass over the pixels: (x - 255 mean) / (255 std)
        scale = 255.0 if scale01 else 1.0
        self._shift = torch.tensor([scale * m for m in mean or (0.0,) * 3], device=device).view(1, 3, 1, 1)
        self._divisor = torch.tensor([scale * s for s in std or (1.0,) * 3], device=device).view(1, 3, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(self._shift.device, non_blocking=True).float().sub_(self._shift).div_(self._divisor)


class FrozenBackbone(nn.Module):
    """uint8 images in, features out; nothing in it can move.

    The weights that run are a copy with every batch norm folded into its convolution (`backbones.fast`), so there are no
    running statistics to disturb; `trunk` keeps the weights as loaded, for hashing and export.

    `scale01`, `mean` and `std` are the tensor steps of the preprocessing pipeline: pixels / 255, then (x - mean) / std.
    """

    def __init__(
        self,
        trunk: Trunk | TwoStream,
        certificate: dict,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        scale01: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk.float().eval().requires_grad_(False)
        self.certificate = certificate
        self.device, self.dtype = torch.device(device), dtype
        self._running = fold_batch_norm(trunk).to(self.device, dtype, memory_format=torch.channels_last)
        self.prepare = TensorSteps(scale01, mean, std, self.device)
        self.eval().requires_grad_(False)
        self._at_start = self._hashes()

    def verify(self) -> None:
        """Raises RingbenchError if any tensor, as loaded or as it runs, is not what it was at the start (CASES F1)."""
        if self._hashes() != self._at_start:
            raise RingbenchError("the weights of a frozen backbone changed; this is a fault of ringbench or of a plug-in")

    def _hashes(self) -> tuple[str, str]:
        return trunk_sha256(self.trunk), trunk_sha256(self._running)

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Frozen means frozen: asking for training mode changes nothing (CASES F2)."""
        return super().train(False)

    def requires_grad_(self, requires_grad: bool = True) -> "FrozenBackbone":
        return super().requires_grad_(False)

    def for_inputs(self, *, scale01: bool, mean: Sequence[float] | None, std: Sequence[float] | None) -> "FrozenBackbone":
        """The same weights behind other tensor steps."""
        other = copy.copy(self)
        other.prepare = TensorSteps(scale01, mean, std, self.device)
        return other

    @torch.no_grad()
    def forward(self, images: Tensor, levels: Iterable[str] = ("pooled",)) -> dict[str, Tensor]:
        """Images (N, 3, H, W) uint8 in the pipeline's channel order -> the levels asked for, on `device` in `dtype`.

        res2 .. res5 and prepool (which is res5) are (N, C, H', W'); pooled is (N, C), the mean over H' x W'.
        """
        unknown = set(levels) - set(LEVELS)
        if unknown:
            raise UsageError(f"unknown level {min(unknown)!r}; expected {', '.join(LEVELS)}")
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise UsageError(f"expected uint8 images (N, 3, H, W), found {images.dtype} {tuple(images.shape)}")
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):  # float32 is float32
            stages = self._running(self.prepare(images).to(self.dtype, memory_format=torch.channels_last))
        stages["prepool"] = stages["res5"]
        if "pooled" in levels:
            stages["pooled"] = stages["res5"].mean(dim=(2, 3), dtype=torch.float32).to(self.dtype)
        return {level: stages[level] for level in levels}
