"""The encoder of a name: its file, the card beside it and its entry in the registry, which are all of one training.

Results are found by the name, so another training does not take it unseen: it gets another name, or replaces all three.
"""

import json
from pathlib import Path

from bench import editing, registry
from bench.registry import Registry
from pretrain import recipe as recipes
from pretrain.spec import Recipe
from ringbench import places
from ringbench.errors import UsageError

SAID = ("arch", "stem", "pipeline")  # by an entry and by a recipe
ADVICE, FORCE = "--set name=NAME trains this one beside it", "bench pretrain --force replaces it"


def path_of(recipe: Recipe) -> Path:
    return places.checkpoints() / f"{recipe.name}.safetensors"


def check_name(known: Registry, recipe: Recipe, word: str) -> None:
    """Raises UsageError for a name that cannot be registered."""
    if recipes.is_file(word) and recipe.name in recipes.words():  # its numbers would be listed as those of another encoder
        raise UsageError(f'"{recipe.name}" is a recipe that comes with ringbench; give the one in {word} another `name`')
    taken = {word.casefold() for section in registry.SECTIONS for word in known.words(section)}
    entry = known.backbones.get(recipe.name)
    if recipe.name.casefold() in taken and (entry is None or entry.source != f"recipe:{recipe.name}"):
        raise UsageError(f'the name "{recipe.name}" is taken in the registry; choose another with --set name=NAME')


def check_file(recipe: Recipe, data: tuple[str, str] | None = None) -> None:
    """Raises UsageError where there is an encoder of this name and it is of another recipe, or of other images: `data` are
    the fingerprint and the hash of the splits."""
    path = path_of(recipe)
    if path.parent.exists() and not path.parent.is_dir():
        raise UsageError(f"{path.parent}, where encoders are kept, is a file; expected a folder: move it away")
    if not path.exists():
        return
    card = path.with_suffix(".json")
    try:
        told = json.loads(card.read_text(encoding="utf-8"))
        other, trained_on = recipe.differing(told["recipe"]), (told["data"]["fingerprint"], told["data"]["split_hash"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(f"{path} has no card beside it that says how it was trained: {ADVICE}, {FORCE}") from None
    if data and data != trained_on:
        other.append("set of images")
    if other:
        raise UsageError(f"{recipe.name} was trained with another {', '.join(other)} ({card}): {ADVICE}, {FORCE}")


def check_entry(extra: Path | None, known: Registry, recipe: Recipe, replace: bool) -> None:
    """Raises UsageError where the entry of this name says something else, or one cannot be written."""
    if recipe.name in known.backbones:
        place = known.places[recipe.name]
        packaged = Path(place.rpartition(":")[0]).resolve() != editing.target(extra)
        other = _stale(known, recipe, words=packaged or not path_of(recipe).exists())
        if other and (packaged or not replace):
            advice = ADVICE if packaged else f"{ADVICE}, {FORCE}"
            raise UsageError(f"the entry {recipe.name} ({place}) has another {', '.join(other)} than this training: {advice}")
    if _to_be_written(known, recipe, replace):
        editing.draft(editing.target(extra), recipe.name, _fields(known, recipe), replace)


def register(extra: Path | None, recipe: Recipe, replace: bool) -> None:
    """Give the encoder an entry in the user's registry, unless it has one that may stay."""
    known, path = registry.load(extra), editing.target(extra)  # read anew: the training may have taken days
    if _to_be_written(known, recipe, replace):
        editing.add_backbone(path, recipe.name, _fields(known, recipe), replace)
        print(f"registered {recipe.name} in {path}")


def _to_be_written(known: Registry, recipe: Recipe, replace: bool) -> bool:
    return recipe.name not in known.backbones or (replace and bool(_stale(known, recipe)))


def _stale(known: Registry, recipe: Recipe, words: bool = True) -> list[str]:
    """What the entry says otherwise; with `words` those about the pretraining count, which people may have changed."""
    entry = known.backbones[recipe.name]
    stale = [key for key in SAID if getattr(entry, key) != getattr(recipe, key)]
    return stale + ["pretraining"] * (words and entry.pretraining != recipe.title)


def _fields(known: Registry, recipe: Recipe) -> dict[str, str | list[str]]:
    entry = known.backbones.get(recipe.name)
    aliases = [word for word in recipes.aliases(recipe.name) if word not in known.words("backbones")]
    fields = {
        "title": recipe.title,
        "aliases": entry.aliases if entry else [*aliases, *recipe.aliases],
        **{key: getattr(recipe, key) for key in SAID[:2]},
        "source": f"recipe:{recipe.name}",
        "pipeline": recipe.pipeline,
        "pretraining": recipe.title,
    }
    return {key: value for key, value in fields.items() if value}
