"""One registry file becomes entries: specs that know the lines they stand in, and one sentence for everything that is wrong."""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from backbones.formats import FORMATS
from backbones.spec import BackboneSpec
from imagesets import pipeline
from imagesets.providers import PROVIDERS
from imagesets.spec import ImagesetSpec
from ringbench import yaml_lines
from ringbench.errors import UsageError
from ringbench.spec import Spec
from ringbench.wording import found, nearest, sentences
from ringbench.yaml_lines import UNREADABLE
from transfer.detection import settings as detection
from transfer.probes import PROBES
from transfer.spec import DETECTION, ProtocolSpec, TaskSpec

SECTIONS: dict[str, type[Spec]] = {
    "backbones": BackboneSpec,
    "imagesets": ImagesetSpec,
    "protocols": ProtocolSpec,
    "tasks": TaskSpec,
}
LABELS = {"backbones": "backbone", "imagesets": "image set", "protocols": "protocol", "tasks": "task"}
AXES = ("imageset", "protocol")  # along which a family of tasks is written as a product
NO_PATH = re.compile(
    r"random|recipe:\w[\w.@+-]*|https?://[^/\s]+/\S*[^/\s]|hf:[\w.-]+/[\w.-]+(/[\w.-]+)*"
)  # sources that are no local file


class Where(NamedTuple):
    """The place of an entry in its file; called with keys, the line of that key or of the nearest one above it."""

    file: str
    lines: Mapping[tuple[str | int, ...], int]
    path: tuple[str | int, ...] = ()

    def __call__(self, *keys: str | int) -> int:
        path = (*self.path, *keys)
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


class Problem(NamedTuple):
    file: str
    line: int
    sentence: str

    def __str__(self) -> str:
        sentence = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in self.sentence)
        return f"{self.file}:{self.line}: {sentence}"


class Entry(NamedTuple):
    section: str
    spec: Spec
    where: Where

    @property
    def label(self) -> str:
        return f'{LABELS[self.section]} "{self.spec.name}"'

    def problem(self, sentence: str, *keys: str | int) -> Problem:
        return Problem(self.where.file, self.where(*keys), sentence)


def shown(path: Path) -> str:
    """A path as a person would write it: relative where it lies below the working folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class File:
    """The registry file at `path` read: its sound `entries`, its `problems`, and the names of `broken` entries.

    `text` stands in for the file's content. Raises UsageError if the file cannot be read at all.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        document = yaml_lines.read(yaml_lines.content(Path(shown(path)), "registry") if text is None else text)
        self.folder = path.absolute().parent
        self.where = Where(shown(path), {(): 1} | document.lines)
        self.entries: list[Entry] = []
        self.problems = [Problem(self.where.file, line, sentence) for line, sentence in document.problems]
        self.broken: set[str] = set()
        self._sections(document.value)
        self.problems = list(dict.fromkeys(self.problems))  # the tasks of one family share their problems

    def _problem(self, line: int, sentence: str) -> None:
        self.problems.append(Problem(self.where.file, line, sentence))

    def _sections(self, value: Any) -> None:
        if isinstance(value, dict):
            for section, entries in value.items():
                self._section(section, entries)
        elif value not in (None, UNREADABLE):
            self._problem(1, f"the file is {found(value)}; expected the sections {', '.join(SECTIONS)}")

    def _section(self, section: str, entries: Any) -> None:
        if section not in SECTIONS:
            self._problem(self.where(section), f'unknown section "{section}"{nearest(section, SECTIONS)}')
        elif isinstance(entries, dict):
            for key, fields in entries.items():
                self._entry(section, key, fields)
        elif entries not in (None, UNREADABLE):
            self._problem(
                self.where(section), f'section "{section}" is {found(entries)}; expected names with their keys below them'
            )

    def _entry(self, section: str, key: str, fields: Any) -> None:
        where = self.where._replace(path=(section, key))
        label = f'{LABELS[section]} "{key}"'
        if not isinstance(fields, dict):
            self.broken.add(key)
            if fields is not UNREADABLE:
                self._problem(where(), f"{label} is {found(fields)}; expected its keys below it")
        elif section == "tasks":
            for name, member, place in self._family(key, fields, where, label):
                self._build(section, name, member, place, label)
        else:
            self._build(section, key, fields, where, label)

    def _family(self, key: str, fields: dict[str, Any], where: Where, label: str) -> Iterator[tuple[str, dict[str, Any], Where]]:
        """`"{imageset}_linear"` with a list of image sets is one task for each; a plain entry is a family of one."""
        placeholders = re.findall(r"{(.*?)}", key)
        for word in set(placeholders) - set(AXES):
            self._problem(where(), f"{label}: unknown {{{word}}} in the name{nearest(word, AXES)}")
            return
        for axis in AXES:
            if isinstance(fields.get(axis), list) and axis not in placeholders:
                self._problem(where(axis), f'"{axis}" of {label} is a list, so the name needs {{{axis}}} to tell the tasks apart')
                return
        axes = [axis for axis in AXES if axis in fields]
        values = [fields[axis] if isinstance(fields[axis], list) else [fields[axis]] for axis in axes]
        for chosen in product(*map(enumerate, values)):
            member = {axis: value for axis, (_, value) in zip(axes, chosen, strict=True)}
            lines = {(*where.path, axis): where(axis, index) for axis, (index, _) in zip(axes, chosen, strict=True)}
            filled = {"title": "", **_fill(fields, member), **member}
            yield _fill(key, member), filled, where._replace(lines=ChainMap(lines, where.lines))

    def _build(self, section: str, name: str, fields: dict[str, Any], where: Where, label: str) -> None:
        if "name" in fields:
            self._problem(where("name"), f'unknown key "name" in {label}; the word above the keys is the name')
        try:
            spec = SECTIONS[section].model_validate({**fields, "name": name}, strict=True)
        except ValidationError as error:
            self.broken.add(name)
            for keys, sentence in sentences(error, SECTIONS[section], label):
                self._problem(where(*keys), sentence)
            return
        for keys, sentence in _content_problems(spec):
            self._problem(where(*keys), f'"{".".join(keys)}" of {label}: {sentence}')
        if isinstance(spec, BackboneSpec) and not NO_PATH.fullmatch(spec.source):
            spec = spec.model_copy(update={"source": str(self.folder / Path(spec.source).expanduser())})
        self.entries.append(Entry(section, spec, where))


def _content_problems(spec: Spec) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the types cannot see, as (keys, sentence)."""
    match spec:
        case BackboneSpec():
            if spec.format not in {"auto", *FORMATS}:
                yield ("format",), f'unknown format "{spec.format}"{nearest(spec.format, ["auto", *FORMATS])}'
            if not NO_PATH.fullmatch(spec.source) and re.match(r"$|recipe:|hf:|\w+://", spec.source):
                yield (
                    ("source",),
                    f'"{spec.source}" names no weights; expected random, recipe:NAME, an address, hf:OWNER/NAME or a path',
                )
            yield from _refused("pipeline", pipeline.parse, spec.pipeline)
        case ImagesetSpec():
            if spec.provider not in PROVIDERS:
                yield ("provider",), f'unknown provider "{spec.provider}"{nearest(spec.provider, PROVIDERS)}'
            if spec.classes == 1 and not spec.train:  # a detector may look for one kind of thing
                yield ("classes",), "one class leaves nothing to tell apart; expected 2 or more"
            yield from _refused("geometry", pipeline.parse("rgb").with_geometry, spec.geometry)
        case ProtocolSpec():
            if spec.probe not in (*PROBES, DETECTION):
                yield ("probe",), f'unknown probe "{spec.probe}"{nearest(spec.probe, (*PROBES, DETECTION))}'
            if (spec.probe == DETECTION) != (spec.level == "stages"):
                yield (
                    ("level",),
                    f'"{spec.level}" does not go with the probe "{spec.probe}"; a detector, and only it, sees stages',
                )
            if spec.probe == DETECTION:
                yield from _refused("settings", detection.settings, spec.settings)
            for key, value in spec.settings.items():
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", item):
                        yield (
                            ("settings", key),
                            f"YAML reads {item} as text; a number with an exponent needs a dot and a sign: 1.0e-3",
                        )


def _refused(key: str, check: Callable[[Any], object], value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    try:
        check(value)
    except UsageError as error:
        yield (key,), str(error)


def _fill(value: Any, member: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, member) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, member) for item in value]
    if isinstance(value, str):
        for axis, chosen in member.items():
            value = value.replace(f"{{{axis}}}", str(chosen))
    return value
