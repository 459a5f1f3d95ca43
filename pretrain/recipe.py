"""Where recipes come from: files laid over one another. Imports no torch.

Nobody writes a recipe out: `METHOD_DATASET` is the file of the method, then that of the data set laid over it, then the command
line's `--set key=value`. A method that `extends` another is laid over it first. Under `methods`, a data set's file holds what
applies to one method, and to those that extend it, there. A file of the user's own `extends` a recipe or another such file.
"""

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pretrain.spec import ASIDE, Recipe, content_problems
from ringbench import yaml_lines
from ringbench.errors import UsageError
from ringbench.wording import found, nearest, sentences

FOLDER = Path(__file__).with_name("recipes")


class Draft:
    """Values on their way to a recipe, each with the place a person wrote it in.

    `titled` are the values there were when the title was written: it does not speak of what was changed afterwards.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.places: dict[tuple, str] = {}
        self.headers: dict[str, str] = {}
        self.titled: dict[str, Any] = {}

    def lay(self, value: dict[str, Any], places: dict[tuple, str]) -> None:
        """Groups of keys are merged, anything else is replaced."""
        self._merge(self.value, value, ())
        self.places |= {keys: place for keys, place in places.items() if keys[:1] and keys[0] in value}
        if "title" in value:
            self.titled = _flat(self.value)

    def _merge(self, target: dict[str, Any], value: dict[str, Any], path: tuple) -> None:
        for key, item in value.items():
            here = (*path, key)
            if isinstance(item, dict) and isinstance(target.get(key), dict):
                self._merge(target[key], item, here)
            else:
                self._forget(target.get(key), here)
                target[key] = item

    def _forget(self, value: Any, path: tuple) -> None:
        """The places of a value that is to be replaced."""
        self.places.pop(path, None)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            self._forget(item, (*path, key))

    def place(self, keys: tuple) -> str:
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, self.places[()])

    def changes(self) -> str:
        """What the title does not speak of and the finished encoder depends on, as one would --set it."""
        now = {key: item for key, item in _flat(self.value).items() if key.partition(".")[0] not in ASIDE}
        return ", ".join(f"{key}={_shown(item)}" for key, item in now.items() if self.titled.get(key, self) != item)


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
        raise UsageError(f'unknown recipe "{word[:60]}"{nearest(word, known)}; `bench list recipes` shows them')
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
    if any(change.startswith("title=") for change in changes or []):  # the command line is read as a whole
        result.titled = _flat(result.value)
    return result


def _own(path: Path) -> Draft:
    """A recipe of the user's own, over the one that it extends; its name is the file's where it gives none."""
    layers, base = {}, str(path)
    while is_file(base):
        path = path.parent / base if layers else path
        value, lines, header = _read(path)
        if not isinstance(value.get("extends"), str):
            raise UsageError(f"{path}:1: a recipe of your own starts from another: add `extends: NAME` (`bench list recipes`)")
        base, place = value.pop("extends"), f"{path}:{lines['extends',]}"
        if path.resolve() in layers:
            raise UsageError(f"{place}: {path} extends itself, by way of {base}")
        layers[path.resolve()] = path, value, lines, header
    try:
        result = _generated(full_name(base))
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    for path, value, lines, header in reversed(layers.values()):
        result.headers[str(path)] = header
        result.value["name"], result.places["name",] = path.stem, str(path)
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
    result.titled = _flat(result.value)
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
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--set {change}: expected a finite number")
    path = tuple(key.split("."))
    if len(path) > yaml_lines.DEPTH:
        raise UsageError(f"--set {change}: nested more than {yaml_lines.DEPTH} levels deep")
    for part in reversed(path):
        value = {part: value}
    result.lay(value, {path[:depth]: f"--set {change}" for depth in range(len(path) + 1)})


def _validated(result: Draft) -> Recipe:
    label = f'recipe "{result.value["name"]}"'
    problems = []
    if ("method",) in result.places:
        problems.append((("method",), f"the method of {label} is that of the recipe it extends; extend another one"))
    try:
        recipe = Recipe.model_validate(result.value, strict=True)
    except ValidationError as error:
        problems += sentences(error, Recipe, label)
    else:
        problems += [(keys, f"{sentence} in {label}") for keys, sentence in content_problems(recipe)]
    if problems:
        raise UsageError("\n       ".join(f"{result.place(keys)}: {sentence}" for keys, sentence in problems))
    changes = result.changes()
    return recipe.model_copy(update={"title": f"{recipe.title}; {changes}"}) if changes else recipe


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
    text = yaml_lines.content(path, "recipe")
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


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys in one row, as --set spells them."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return flat


def _shown(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:60]


def _path(folder: str, stem: str) -> Path:
    return FOLDER / folder / f"{stem}.yaml"


def _stems(folder: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / folder).glob("[!_]*.yaml"))
