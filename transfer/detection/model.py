"""An encoder of ringbench as the backbone and the res5 of Detectron2's R-CNNs, built from a configuration like any other.

`import transfer.detection.model` registers `build_trunk_backbone`, `build_trunk_fpn_backbone` and `TrunkRes5ROIHeads`.
MODEL.TRUNK.ARCH and STEM say which network; MODEL.BACKBONE.FREEZE_AT, as ever, how far it is frozen: 0 nothing, 4 stem .. res4,
5 res5 too, also where it sits in the RoI head. What is frozen has its batch norms folded and takes no part in autograd.
"""

import copy
from collections import OrderedDict

import torch
from detectron2.layers import ShapeSpec, get_norm
from detectron2.modeling import BACKBONE_REGISTRY, ROI_HEADS_REGISTRY, Backbone
from detectron2.modeling.backbone.fpn import FPN, LastLevelMaxPool
from detectron2.modeling.roi_heads import Res5ROIHeads
from torch import Tensor, nn

from backbones import stems
from backbones.fast import fold_batch_norm
from backbones.trunk import Trunk, TwoStream, build, trunk_sha256
from ringbench.errors import RingbenchError

LEVELS = ("res2", "res3", "res4", "res5")


class Res5(nn.Module):
    """`layer4` of an encoder apart from it; that of each stream on its own half of the channels."""

    def __init__(self, streams: list[Trunk]) -> None:
        super().__init__()
        self.streams = nn.ModuleList(stream.layer4 for stream in streams)

    def forward(self, x: Tensor) -> Tensor:
        """res4 of the image or of regions (N, C, H, W) -> res5 (N, 2C, H/2, W/2)."""
        parts = x.chunk(len(self.streams), dim=1)
        return torch.cat([stream(part) for stream, part in zip(self.streams, parts, strict=True)], dim=1)


class Frozen(nn.Module):
    """A network that cannot move: batch norms folded, no autograd, and no training mode."""

    def __init__(self, network: nn.Module, layout: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        self.network, self._layout = fold_batch_norm(network).to(memory_format=layout), layout
        self.train()

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)

    def fill(self, network: nn.Module) -> None:
        self.network.load_state_dict(fold_batch_norm(network).state_dict())

    @torch.no_grad()
    def forward(self, x: Tensor, *arguments: int):
        return self.network(x.contiguous(memory_format=self._layout), *arguments)


class Learned(nn.Module):
    """A network that trains, its batch norms of the kind Detectron2 calls `norm`."""

    def __init__(self, network: nn.Module, norm: str) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(True)
        for module in list(self.network.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, get_norm(norm, child.num_features))

    def fill(self, network: nn.Module) -> None:
        self.network.load_state_dict(network.state_dict())

    def forward(self, x: Tensor, *arguments: int):
        return self.network(x, *arguments)


class TrunkBackbone(Backbone):
    """Normalised images (N, 3, H, W) -> {"res2": .., "res4": ..}, and "res5" where it is among `out_features`."""

    def __init__(self, trunk: Trunk | TwoStream, out_features: list[str], freeze_at: int, norm: str) -> None:
        super().__init__()
        body, res5 = cut(trunk)
        self.body = _part(body, freeze_at >= 4, norm)
        self.res5 = _part(res5, freeze_at >= 5, norm) if "res5" in out_features else None
        self._out_features = list(out_features)
        self._out_feature_strides = strides(trunk)
        self._out_feature_channels = {level: trunk.width >> (5 - int(level[3])) for level in LEVELS}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        stages = self.body(images, 4)
        if self.res5 is not None:
            stages["res5"] = self.res5(stages["res4"])
        return _exact({level: stages[level] for level in self._out_features})


@BACKBONE_REGISTRY.register()
def build_trunk_backbone(cfg, input_shape: ShapeSpec) -> TrunkBackbone:
    resnets = cfg.MODEL.RESNETS
    return TrunkBackbone(_built(cfg), resnets.OUT_FEATURES, cfg.MODEL.BACKBONE.FREEZE_AT, resnets.NORM)


class TrunkFPN(FPN):
    """Detectron2's pyramid."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return _exact(super().forward(images))


@BACKBONE_REGISTRY.register()
def build_trunk_fpn_backbone(cfg, input_shape: ShapeSpec) -> TrunkFPN:
    return TrunkFPN(
        bottom_up=build_trunk_backbone(cfg, input_shape),
        in_features=cfg.MODEL.FPN.IN_FEATURES,
        out_channels=cfg.MODEL.FPN.OUT_CHANNELS,
        norm=cfg.MODEL.FPN.NORM,
        top_block=LastLevelMaxPool(),
        fuse_type=cfg.MODEL.FPN.FUSE_TYPE,
    )


@ROI_HEADS_REGISTRY.register()
class TrunkRes5ROIHeads(Res5ROIHeads):
    """Detectron2's C4 head with the encoder's own layer4 on every region, of basic blocks or bottlenecks, and after it the batch
    norm of He et al. 2020 (MoCo), section 4.2."""

    @classmethod
    def _build_res5_block(cls, cfg) -> tuple[nn.Sequential, int]:
        trunk, norm = _built(cfg), cfg.MODEL.RESNETS.NORM
        # maps of 7 x 7: on a CPU the plain layout is half as fast again as channels last
        layout = torch.contiguous_format if cfg.MODEL.DEVICE == "cpu" else torch.channels_last
        res5 = _part(cut(trunk)[1], cfg.MODEL.BACKBONE.FREEZE_AT >= 5, norm, layout)
        return nn.Sequential(OrderedDict(res5=res5, norm=get_norm(norm, trunk.width))), trunk.width


def strides(trunk: Trunk | TwoStream) -> dict[str, int]:
    """Pixels of the image from one place of each level to the next: 4 .. 32 behind the stem `imagenet`, 1 .. 8 behind `cifar`."""
    stream = trunk if isinstance(trunk, Trunk) else trunk.l_to_ab
    first = stream.conv1.stride[0] * getattr(stream.maxpool, "stride", 1)
    return {level: first << i for i, level in enumerate(LEVELS)}


def cut(trunk: Trunk | TwoStream) -> tuple[nn.Module, Res5]:
    """A copy of the network without its layer4, which computes up to res4, and one of the layer4 alone."""
    body = copy.deepcopy(trunk)
    streams = [body] if isinstance(body, Trunk) else [getattr(body, name) for name in stems.STREAMS]
    res5 = Res5(streams)
    for stream in streams:
        del stream.layer4
    return body, res5


def fill(model: nn.Module, trunk: Trunk | TwoStream) -> None:
    """Put the weights of `trunk` into a detector, stem .. res5, every tensor of it or RingbenchError (CASES C5)."""
    body, res5 = cut(trunk)
    try:
        bottom(model).body.fill(body)
        head(model).fill(res5)
    except RuntimeError as error:
        raise RingbenchError(f"the encoder does not fit into the detector: {str(error).splitlines()[-1].strip()}") from None


def bottom(model: nn.Module) -> TrunkBackbone:
    return model.backbone.bottom_up if isinstance(model.backbone, FPN) else model.backbone


def head(model: nn.Module) -> Frozen | Learned:
    """res5 of a detector, wherever it is."""
    return bottom(model).res5 or model.roi_heads.res5.res5


def frozen_sha256(model: nn.Module) -> str | None:
    """sha256 over everything in a detector that is frozen; None where nothing is."""
    frozen = nn.ModuleList(part for part in (bottom(model).body, head(model)) if isinstance(part, Frozen))
    return trunk_sha256(frozen) if len(frozen) else None


def _exact(stages: dict[str, Tensor]) -> dict[str, Tensor]:
    """In float32: Detectron2 rounds the corners of regions to the type of the map that they are cut from, and bfloat16 has no
    pixel beyond 256 to itself."""
    return {level: stage.float() for level, stage in stages.items()}


def _built(cfg) -> Trunk | TwoStream:
    return build(cfg.MODEL.TRUNK.ARCH, cfg.MODEL.TRUNK.STEM)


def _part(network: nn.Module, frozen: bool, norm: str, layout: torch.memory_format = torch.channels_last) -> Frozen | Learned:
    return Frozen(network, layout) if frozen else Learned(network, norm)
