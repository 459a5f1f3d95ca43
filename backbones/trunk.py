"""The trunk every checkpoint is poured into, and the frozen extractor made of it."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torchvision.models import resnet

from backbones.fast import fold_batch_norm
from backbones.spec import Arch, Stem
from ringbench.errors import RingbenchError, UsageError

LEVELS = ("res2", "res3", "res4", "res5", "prepool", "pooled")


class Trunk(nn.Module):
    """torchvision's ResNet without its classifier; tensor names are torchvision's (`conv1`, `bn1`, `layer1` .. `layer4`).

    The `imagenet` stem is a 7x7 stride-2 convolution and max pooling (He et al. 2016, table 1), the `cifar` stem a 3x3
    stride-1 convolution without pooling (Chen et al. 2020, SimCLR, appendix B.9).
    """

    def __init__(self, arch: Arch, stem: Stem = "imagenet") -> None:
        super().__init__()
        full = getattr(resnet, arch)(weights=None)
        if stem == "cifar":
            full.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
            nn.init.kaiming_normal_(full.conv1.weight, mode="fan_out", nonlinearity="relu")
            full.maxpool = nn.Identity()
        self.conv1, self.bn1, self.relu, self.maxpool = full.conv1, full.bn1, full.relu, full.maxpool
        self.layer1, self.layer2, self.layer3, self.layer4 = full.layer1, full.layer2, full.layer3, full.layer4
        self.width = full.fc.in_features  # channels of res5: 512 or 2048

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Normalised images (N, 3, H, W) -> {"res2": (N, C, H/4, W/4), .., "res5": (N, C, H/32, W/32)}."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        stages = {}
        for level in (2, 3, 4, 5):
            x = stages[f"res{level}"] = getattr(self, f"layer{level - 1}")(x)
        return stages


def random_trunk(arch: Arch, stem: Stem, seed: int) -> Trunk:
    """torchvision's initialisation from `seed`; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Trunk(arch, stem)


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


class FrozenBackbone(nn.Module):
    """uint8 images in, features out; nothing in it can move.

    The weights that run are a copy with every batch norm folded into its convolution (`backbones.fast`), so there are no
    running statistics to disturb; `trunk` keeps the weights as loaded, for hashing and export.

    `scale01`, `mean` and `std` are the tensor steps of the preprocessing pipeline: pixels / 255, then (x - mean) / std.
    """

    def __init__(
        self,
        trunk: Trunk,
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
        # (x / 255 - mean) / std in one pass over the pixels: (x - 255 mean) / (255 std)
        scale = 255.0 if scale01 else 1.0
        self._shift = torch.tensor([scale * m for m in mean or (0.0,) * 3], device=self.device).view(1, 3, 1, 1)
        self._divisor = torch.tensor([scale * s for s in std or (1.0,) * 3], device=self.device).view(1, 3, 1, 1)
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
        return FrozenBackbone(
            self.trunk, self.certificate, device=self.device, dtype=self.dtype, scale01=scale01, mean=mean, std=std
        )

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
        x = images.to(self.device, non_blocking=True).float().sub_(self._shift).div_(self._divisor)
        with torch.backends.cudnn.flags(benchmark=True, allow_tf32=False):  # float32 means float32 on every device
            stages = self._running(x.to(self.dtype, memory_format=torch.channels_last))
        stages["prepool"] = stages["res5"]
        if "pooled" in levels:
            stages["pooled"] = stages["res5"].mean(dim=(2, 3), dtype=torch.float32).to(self.dtype)
        return {level: stages[level] for level in levels}
