"""What `bench pretrain` is asked to do: one recipe, checked key by key. Imports no torch.

Nobody writes a recipe out: `METHOD_DATASET` is the file of the method, then that of the data set laid over it, then the command
line's `--set key=value`. A method that `extends` another is laid over it first. Under `methods`, a data set's file holds what
applies to one method, and to those that extend it, there. A file of the user's own `extends` a recipe or another such file.
"""

import contextlib
import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from backbones.spec import Arch, Stem
from pretrain.objectives import OBJECTIVES
from ringbench import yaml_lines
from ringbench.errors import UsageError
from ringbench.spec import Name, Seed, Spec
from ringbench.wording import found, nearest, sentences

FOLDER = Path(__file__).with_name("recipes")
Share = Annotated[float, Field(ge=0, le=1)]  # of the whole training: it holds for any number of epochs
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Negatives(BaseModel):
    """A ring between two percentiles of similarity, and how it closes: `pretrain.negatives`, `pretrain.annealing`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    resize: Count = 256  # shorter side of the stored images, where they are files
    image_size: Count = 224
    normalize: Literal["dataset", "imagenet"] = "dataset"

    epochs: Count
    batch_size: Count = 256  # of all ranks together
    accumulate: Count = 1  # backward passes for one step
    optimizer: Literal["sgd", "lars"] = "sgd"
    lr: Positive  # for a batch of `lr_batch`; the rate used is lr * batch_size / lr_batch (Goyal et al. 2017)
    lr_batch: Count = 256
    momentum: Share = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    schedule: Literal["step", "cosine", "constant"] = "cosine"
    drops: list[Share] = Field(default_factory=list)  # when the schedule `step` divides the rate by ten; the others do not
    warmup_epochs: Annotated[float, Field(ge=0)] = 0

    seed: Seed = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on CUDA, float32 elsewhere
    compile: bool = False
    knn_every: Annotated[int, Field(ge=0)] = 5  # epochs; 0: never
    save_every: Count = 1  # epochs
    keep: Count = 2  # of the last checkpoints; the best by kNN is kept beside them

    @property
    def pipeline(self) -> str:
        """How images are prepared for the finished encoder: as the Ring paper does, by each target's own statistics."""
        geometry = f"rgb|resize({max(self.resize, self.image_size)},bicubic)|center_crop({self.image_size})|scale01"
        return geometry if self.stem in ("lab", "ydbdr") else f"{geometry}|normalize(dataset)"  # colours are the trunk's affair


class Draft:
    """Values on their way to a recipe, each with the place a person wrote it in."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.places: dict[tuple, str] = {}
        self.headers: dict[str, str] = {}

    def lay(self, value: dict[str, Any], places: dict[tuple, str], path: tuple = ()) -> None:
        """Groups of keys are merged, anything else is replaced."""
        target = self.value
        for key in path:
            target = target[key]
        for key, item in value.items():
            here = (*path, key)
            self.places[here] = places.get(here) or places[max((p for p in places if here[: len(p)] == p), key=len)]
            if isinstance(item, dict) and isinstance(target.get(key), dict):
                self.lay(item, places, here)
            else:
                target[key] = item
                self.places |= {p: place for p, place in places.items() if p[: len(here)] == here}

    def place(self, keys: tuple) -> str:
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, self.places[()])


def names() -> list[str]:
    """Every recipe, method by method."""
    return [f"{method}_{dataset}" for method in _stems("methods") for dataset in _stems("datasets")]


def aliases(name: str) -> list[str]:
    """Other names of the recipe `name`."""
    return [word for word, full in words().items() if full == name != word]


def words() -> dict[str, str]:
    """Every name and alias, with the name it stands for."""
    methods = {method: [method, *_read(_path("methods", method))[0].get("aliases", [])] for method in _stems("methods")}
    datasets = _stems("datasets")
    return {f"{word}_{data}": f"{method}_{data}" for method, its in methods.items() for word in its for data in datasets}


def full_name(word: str) -> str:
    """The recipe that `word`, a name or an alias, stands for. Raises UsageError with the nearest names."""
    known = words()
    if word not in known:
        raise UsageError(f'unknown recipe "{word}"{nearest(word, known)}; `bench list recipes` shows them')
    return known[word]


def is_file(word: str) -> bool:
    """Whether `word` is the path of a recipe of the user's own."""
    return word.endswith((".yaml", ".yml"))


def load(word: str, changes: list[str] | None = None) -> Recipe:
    """The recipe called `word`, or in that file, with `key=value` changes.

    Raises UsageError with file and line of whatever is wrong.
    """
    return _validated(draft(word, changes))


def draft(word: str, changes: list[str] | None = None) -> Draft:
    result = _own(Path(word)) if is_file(word) else _generated(full_name(word))
    for change in changes or []:
        _change(result, change)
    return result


def _own(path: Path, after: tuple[Path, ...] = ()) -> Draft:
    """A recipe of the user's own, over the one that it extends; its name is the file's where it gives none."""
    try:
        value, lines, header = _read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(value.get("extends"), str):
        raise UsageError(f"{path}:1: a recipe of your own starts from another: add `extends: NAME` (`bench list recipes`)")
    base, place = value.pop("extends"), f"{path}:{lines['extends',]}"
    if path.resolve() in after:
        raise UsageError(f"{place}: {path} extends itself, by way of {base}")
    if is_file(base):
        result = _own(path.parent / base, (*after, path.resolve()))
    else:
        try:
            result = _generated(full_name(base))
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
    result.headers[str(path)] = header
    result.value["name"] = path.stem
    result.lay(value, {keys: f"{path}:{line}" for keys, line in lines.items()})
    return result


def _generated(name: str) -> Draft:
    method, _, dataset = name.rpartition("_")
    result = Draft()
    result.places[()] = str(FOLDER)
    chain = list(_extended(method))
    title = []
    for each in chain:
        value, places = _file(result, "methods", each)
        title = [value.pop("title")]
        result.lay({key: item for key, item in value.items() if key not in ("extends", "aliases")}, places)
    value, places = _file(result, "datasets", dataset)
    title.append(value.pop("title"))
    special = value.pop("methods", {})
    for word in set(special) - set(_stems("methods")):
        raise UsageError(f'{places["methods", word]}: unknown method "{word}"{nearest(word, _stems("methods"))}')
    result.lay(value, places)
    for each in chain:
        if each in special:
            prefix = ("methods", each)
            result.lay(special[each], {p[2:]: place for p, place in places.items() if p[:2] == prefix})
    result.value |= {"name": name, "method": method, "title": ", ".join(title)}
    return result


def _change(result: Draft, change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not all(key.split(".")):
        raise UsageError(f'--set "{change}" is not key=value')
    document = yaml_lines.read(text)
    if document.problems:
        raise UsageError(f"--set {change}: {document.problems[0][1]}")
    value: Any = document.value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # YAML wants 1.0e-4, people write 1e-4
            value = float(value)
    path = tuple(key.split("."))
    for part in reversed(path):
        value = {part: value}
    result.lay(value, {path[:depth]: f"--set {change}" for depth in range(len(path) + 1)})


def _validated(result: Draft) -> Recipe:
    label = f'recipe "{result.value["name"]}"'
    try:
        recipe = Recipe.model_validate(result.value, strict=True)
    except ValidationError as error:
        keys, sentence = next(sentences(error, Recipe, label))
        raise UsageError(f"{result.place(keys)}: {sentence}") from None
    for keys, sentence in _content_problems(recipe):
        raise UsageError(f"{result.place(keys)}: {sentence} in {label}")
    return recipe


def _content_problems(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
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
        yield ("stem",), f"the objective cmc needs the stem lab, and only it, found {recipe.stem}"


def _extended(method: str) -> Iterator[str]:
    base = _read(_path("methods", method))[0].get("extends")
    if base:
        yield from _extended(base)
    yield method


def _file(result: Draft, folder: str, stem: str) -> tuple[dict[str, Any], dict[tuple, str]]:
    path = _path(folder, stem)
    value, lines, header = _read(path)
    shown = f"{folder}/{path.name}"
    result.headers[shown] = header
    return value, {keys: f"{path}:{line}" for keys, line in lines.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple, int], str]:
    text = path.read_text(encoding="utf-8")
    document = _parsed(text)
    for line, sentence in document.problems:
        raise UsageError(f"{path}:{line}: {sentence}")
    if not isinstance(document.value, dict):
        raise UsageError(f"{path}:1: the file is {found(document.value)}; expected keys with values")
    header = text.split("\n\n")[0] if text.startswith("#") else ""
    return copy.deepcopy(document.value), {(): 1} | document.lines, "\n".join(line[2:] for line in header.splitlines())


@cache
def _parsed(text: str) -> yaml_lines.Document:
    """The files are few and read for every name."""
    return yaml_lines.read(text)


def _path(folder: str, stem: str) -> Path:
    return FOLDER / folder / f"{stem}.yaml"


def _stems(folder: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / folder).glob("[!_]*.yaml"))
