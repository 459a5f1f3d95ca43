"""The network that is trained: a trunk of `backbones.trunk` and a head on its pooled features."""

import torch
from torch import Tensor, nn

from backbones import stems
from backbones.trunk import TwoStream, build
from pretrain.shuffle_bn import split_batch_norm
from pretrain.spec import Recipe


class Encoder(nn.Module):
    """Normalised images (N, 3, H, W) -> embeddings (N, dim), or features (N, C) where the head is `none`."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.trunk = build(recipe.arch, recipe.stem)
        self.head = head(recipe.head, self.trunk.width, recipe.dim)
        self.dim = self.trunk.width if recipe.head == "none" else recipe.dim

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.head(pooled(self.trunk(x))),)

    def features(self, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """RGB images in 0..1 (N, 3, H, W) -> the trunk's pooled features (N, C)."""
        return pooled(self.trunk((images - mean) / std))


class TwoStreamEncoder(nn.Module):
    """Lab images (N, 3, H, W), normalised as the stem's -> embeddings of L and of ab, (N, dim) each: CMC."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.trunk: TwoStream = build(recipe.arch, recipe.stem)
        self.heads = nn.ModuleList(head(recipe.head, self.trunk.width // 2, recipe.dim) for _ in stems.STREAMS)
        self.dim = recipe.dim

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        streams = (self.trunk.l_to_ab(x[:, :1]), self.trunk.ab_to_l(x[:, 1:]))
        return tuple(head(pooled(stages)) for head, stages in zip(self.heads, streams, strict=True))

    def features(self, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """RGB images in 0..1 (N, 3, H, W) -> both streams' pooled features (N, 2C); the trunk normalises colours itself."""
        return pooled(self.trunk(images))


def make(recipe: Recipe, ranks: int = 1) -> Encoder | TwoStreamEncoder:
    """The encoder of a recipe, initialised from its seed; the caller's random state is left alone.

    Of `recipe.bn_groups` groups, each of the `ranks` keeps its share; batch norm never spans ranks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        encoder = (TwoStreamEncoder if recipe.objective == "cmc" else Encoder)(recipe)
    groups = recipe.bn_groups // ranks
    return split_batch_norm(encoder, groups) if groups > 1 else encoder


def head(kind: str, width: int, dim: int) -> nn.Module:
    """`linear`, or `mlp` with a hidden layer as wide as the features (MoCo v2, SimCLR's paper), or `none`.

    `mlp_bn` has batch norm after both layers, as google-research/simclr: embeddings are centred from the first step on. Without
    it those of an untrained network all point one way, and a short training is spent on spreading them.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(width, dim)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))
    inner = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()
    return nn.Sequential(*inner, nn.Linear(width, dim, bias=False), nn.BatchNorm1d(dim))


def pooled(stages: dict[str, Tensor]) -> Tensor:
    return stages["res5"].mean(dim=(2, 3))
