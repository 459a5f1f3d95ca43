"""Views of a batch in, loss out: the encoder and its objective, joined by what the objective says it needs."""

import inspect

import torch
from pydantic import ValidationError, create_model
from torch import Tensor, nn

from pretrain import annealing, encoder, objectives
from pretrain.memory import EMA
from pretrain.negatives import Ring
from pretrain.shuffle_bn import shuffle, unshuffle
from pretrain.spec import Negatives, Recipe
from ringbench.errors import UsageError
from ringbench.spec import Written
from ringbench.wording import sentences

ANNEALING = {
    "constant": annealing.Constant,
    "linear": annealing.Linear,
    "step": annealing.Step,
    "exponential": annealing.Exponential,
    "adaptive": annealing.Adaptive,
}


class Learner(nn.Module):
    """Everything that is trained or remembered, so that its state dict is all a checkpoint needs of the model.

    `n` training images of `classes` classes; `ranks` share each batch.
    """

    def __init__(self, recipe: Recipe, n: int, classes: int, ranks: int = 1) -> None:
        super().__init__()
        self.encoder = encoder.make(recipe, ranks)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed + 1)
            self.objective = _objective(recipe, n, classes, self.encoder.dim)
        self.views = 1 if self.objective.embeddings in (("image",), ("L", "ab")) else 2
        self.ema = EMA(self.encoder, recipe.ema) if recipe.ema is not None else None

    def forward(self, views: list[Tensor], needs: dict, generator: torch.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Views (b, 3, H, W) each of this rank's images -> the mean loss, and the embeddings to remember."""
        if self.ema is not None:
            z = (*self.encoder(views[0]), self._keys(views[1], generator))
        elif self.views == 2:
            pairs = torch.stack(views, dim=1).flatten(0, 1)  # the two views of an image share a batch norm group
            z = self.encoder(pairs)[0].unflatten(0, (-1, 2)).unbind(1)
        else:
            z = self.encoder(views[0])
        loss = self.objective(*z, **needs)
        return loss, tuple(part.detach() for part in z)

    @torch.no_grad()
    def _keys(self, view: Tensor, generator: torch.Generator) -> Tensor:
        """From the slow encoder, in batches shuffled over ranks and batch norm groups (MoCo, section 3.3)."""
        shuffled, order = shuffle(view, generator)
        return unshuffle(self.ema(shuffled)[0].float(), order)

    @property
    def ring(self) -> Ring | None:
        return getattr(self.objective, "negatives", None)


def _objective(recipe: Recipe, n: int, classes: int, dim: int) -> nn.Module:
    """Raises UsageError for settings that are not those of the objective."""
    kind = objectives.get(recipe.objective)
    given = {"n": n, "classes": classes, "dim": dim, "negatives": ring(recipe.negatives), "warm_start": True}
    accepted = inspect.signature(kind).parameters
    if recipe.negatives and "negatives" not in accepted:
        raise UsageError(f"recipe {recipe.name!r}: the objective {recipe.objective} has no negatives to choose")
    types = {key: (each.annotation, each.default) for key, each in accepted.items() if key not in given}
    settings = create_model("Settings", __base__=Written, **types)
    try:
        settings.model_validate(recipe.settings, strict=True)
    except ValidationError as error:
        told = (sentence for _, sentence in sentences(error, settings, f'the settings of recipe "{recipe.name}"'))
        raise UsageError("\n       ".join(told)) from None
    return kind(**recipe.settings, **{key: value for key, value in given.items() if key in accepted})


def ring(negatives: Negatives | None) -> Ring | None:
    return Ring(negatives.w_l, negatives.w_u, ANNEALING[negatives.annealing]()) if negatives else None
