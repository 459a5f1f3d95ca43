"""What one training run is: the recipe, checked key by key. Imports no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from backbones.spec import Arch, Stem
from pretrain.objectives import OBJECTIVES
from ringbench.spec import Count, Name, Positive, Seed, Spec, Written
from ringbench.wording import nearest

Share = Annotated[float, Field(ge=0, le=1)]  # of the whole training: it holds for any number of epochs
Edge = Annotated[int, Field(ge=1, le=10_000)]  # pixels of the shorter side
ASIDE = {
    "name",
    "title",
    "aliases",
    "compile",
    "knn_every",
    "save_every",
    "keep",
}  # what an encoder is called, how a run is looked after


class Negatives(Written):
    """A ring between two percentiles of similarity, and how it closes: `pretrain.negatives`, `pretrain.annealing`."""

    w_l: Annotated[float, Field(ge=0, lt=100)]
    w_u: Annotated[float, Field(gt=0, le=100)]
    annealing: Literal["constant", "linear", "step", "exponential", "adaptive"] = "linear"
    over: Annotated[float, Field(gt=0, le=1)] = 1 / 3


class Recipe(Spec):
    """One way to train one encoder on one image set. A share is a part of the whole training."""

    method: Name
    imageset: Name
    objective: str
    settings: dict[str, JsonValue] = Field(default_factory=dict)  # arguments of the objective
    negatives: Negatives | None = None
    ema: Share | None = None  # momentum of MoCo's key encoder
    warm_share: Share = 0  # local aggregation is instance discrimination until then

    arch: Arch = "resnet18"
    stem: Stem = "imagenet"
    head: Literal["linear", "mlp", "mlp_bn", "none"] = "linear"
    dim: Count = 128
    bn_groups: Count = 1  # parts of the global batch with batch norm statistics of their own

    views: str  # a family of augmentations: pretrain.views
    resize: Edge = 256  # of the stored images, where they are files
    image_size: Edge = 224
    normalize: Literal["dataset", "imagenet"] = "dataset"

    epochs: Count
    batch_size: Count = 256  # of all ranks together
    accumulate: Count = 1  # backward passes for one step
    optimizer: Literal["sgd", "lars", "adamw"] = "sgd"
    lr: Positive  # for a batch of `lr_batch`; the rate used is lr * batch_size / lr_batch (Goyal et al. 2017)
    lr_batch: Count = 256
    momentum: Share = 0.9  # AdamW's first beta
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    schedule: Literal["step", "cosine", "constant"] = "cosine"
    drops: list[Share] = Field(default_factory=list)  # when the schedule `step` divides the rate by ten; the others do not
    warmup_epochs: Annotated[float, Field(ge=0)] = 0

    seed: Seed = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on CUDA, float32 elsewhere
    compile: bool = False
    knn_every: Annotated[int, Field(ge=0, le=10**7)] = 5  # epochs; 0: never
    save_every: Count = 1  # epochs
    keep: Count = 2  # of the last checkpoints; the best by kNN is kept beside them

    @property
    def pipeline(self) -> str:
        """How images are prepared for the finished encoder: as the Ring paper does, by each target's own statistics."""
        geometry = f"rgb|resize({max(self.resize, self.image_size)},bicubic)|center_crop({self.image_size})|scale01"
        return geometry if self.stem in ("lab", "ydbdr") else f"{geometry}|normalize(dataset)"  # colours are the trunk's affair

    def differing(self, other: dict[str, Any]) -> list[str]:
        """The keys in which another recipe, as it was written down, trains something else."""
        mine = self.model_dump()
        return [key for key, value in other.items() if key not in ASIDE and mine.get(key) != value]


def content_problems(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the types cannot see, as (keys, sentence)."""
    if recipe.objective not in OBJECTIVES:
        yield ("objective",), f'unknown objective "{recipe.objective}"{nearest(recipe.objective, OBJECTIVES)}'
    if recipe.negatives and recipe.negatives.w_l >= recipe.negatives.w_u:
        yield ("negatives",), f"w_l={recipe.negatives.w_l:g} must be below w_u={recipe.negatives.w_u:g}"
    if recipe.batch_size % recipe.accumulate:
        yield ("accumulate",), f"a batch of {recipe.batch_size} cannot be cut into {recipe.accumulate} equal parts"
    if recipe.accumulate > 1 and recipe.objective in ("simclr", "dcl", "dclw", "balanced"):
        yield ("accumulate",), f"{recipe.objective} takes its negatives from the batch, so a batch cannot be accumulated"
    if (recipe.objective == "moco") != (recipe.ema is not None):
        yield ("ema",), "a momentum `ema` belongs to the objective moco, and only there"
    if (recipe.objective == "cmc") != (recipe.stem in ("lab", "ydbdr")):
        yield ("stem",), f"the objective cmc needs the stem lab or ydbdr, and only it, found {recipe.stem}"
