"""What exists: the packaged registries and the user's overlay, checked as a whole and searched by name, alias or glob."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from backbones.spec import BackboneSpec
from bench.entries import AXES, LABELS, SECTIONS, Entry, File, Problem
from imagesets.spec import ImagesetSpec
from ringbench import places
from ringbench.errors import UsageError
from ringbench.spec import Spec
from ringbench.wording import nearest
from transfer.spec import ProtocolSpec, TaskSpec

_BESIDE = Path(__file__).with_name("registry.yaml")  # in an installed wheel
PACKAGED = _BESIDE if _BESIDE.is_file() else Path(__file__).parent.parent / "registry.yaml"
ENCODERS = PACKAGED.with_name("encoders.yaml")  # packaged too: backbones of other people


@dataclass
class Registry:
    """The four sections, name to spec, in the order of the files. Names and aliases are unique across all of them."""

    backbones: dict[str, BackboneSpec] = field(default_factory=dict)
    imagesets: dict[str, ImagesetSpec] = field(default_factory=dict)
    protocols: dict[str, ProtocolSpec] = field(default_factory=dict)
    tasks: dict[str, TaskSpec] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # name to "file:line"

    def find(self, section: str, name: str) -> Spec:
        """The entry called `name`, or with that alias. Raises UsageError with the nearest names."""
        words = self.words(section)
        if name not in words:
            raise UsageError(f'unknown {LABELS[section]} "{name}"{nearest(name, words)}; `bench list {section}` shows them')
        return words[name]

    def match(self, section: str, patterns: list[str]) -> list[Spec]:
        """The entries whose name or an alias matches a glob, each once, in the registry's order.

        Raises UsageError for a pattern that matches nothing.
        """
        chosen = set()
        for pattern in patterns:
            hits = {spec.name for word, spec in self.words(section).items() if fnmatchcase(word, pattern)}
            chosen |= hits or {self.find(section, pattern).name}
        return [spec for name, spec in getattr(self, section).items() if name in chosen]

    def canonical(self, section: str, patterns: list[str]) -> list[str]:
        """The patterns, and the names of the entries of which they match an alias: names may be known that are no entry here."""
        aliases = ((alias, spec.name) for spec in getattr(self, section).values() for alias in spec.aliases)
        return [*patterns, *(name for alias, name in aliases if any(fnmatchcase(alias, pattern) for pattern in patterns))]

    def locate(self, name: str) -> tuple[str, Spec]:
        """(section, entry) of a name or alias from any section."""
        words = {word: (section, spec) for section in SECTIONS for word, spec in self.words(section).items()}
        if name not in words:
            raise UsageError(f'nothing is called "{name}"{nearest(name, words)}; `bench list` shows every name')
        return words[name]

    def knows(self, name: str) -> bool:
        """Whether it is a name or alias of any section."""
        return any(name in self.words(section) for section in SECTIONS)

    def words(self, section: str) -> dict[str, Spec]:
        """Every name and alias of a section, with the entry it stands for."""
        return {word: spec for spec in getattr(self, section).values() for word in (spec.name, *spec.aliases)}


def load(extra: Path | None = None) -> Registry:
    """The packaged registries and the overlay: `extra`, or `overlay()`. Raises UsageError with the first of its problems."""
    registry, problems = check(extra or overlay())
    if problems:
        more = f" (and {len(problems) - 1} more: `bench validate` shows all)" if problems[1:] else ""
        raise UsageError(f"{problems[0]}{more}")
    return registry


def overlay() -> Path | None:
    """The user's own registry: ./registry.yaml (unless that is the packaged one), else BENCH_HOME/registry.yaml."""
    candidates = Path("registry.yaml").absolute(), places.home() / "registry.yaml"
    return next((path for path in candidates if path.is_file() and not path.samefile(PACKAGED)), None)


def check(extra: Path | None, text: str | None = None) -> tuple[Registry, list[Problem]]:
    """The packaged registries with the overlay `extra`, and everything that is wrong with them.

    What is sound is in the Registry even where something else is not. `text` stands in for the overlay's content.
    Raises UsageError if a file cannot be read at all.
    """
    files = [File(path, text if _same(extra, path) else None) for path in (PACKAGED, ENCODERS)]
    if extra is not None and not any(_same(extra, path) for path in (PACKAGED, ENCODERS)):
        files.append(File(extra, text))
    entries, problems = _unique([entry for file in files for entry in file.entries])
    broken = set().union(*(file.broken for file in files))
    registry = Registry()
    for entry in entries:
        registry.places[entry.spec.name] = f"{entry.where.file}:{entry.where()}"
        if entry.section != "tasks":
            getattr(registry, entry.section)[entry.spec.name] = entry.spec
    for entry in entries:
        if entry.section == "tasks":
            problems += _link_task(registry, entry, broken)
    for entry in entries:
        if entry.section == "backbones":
            problems += _link_references(registry, entry, broken)
    problems += [problem for file in files for problem in file.problems]
    order = [file.where.file for file in files]
    return registry, sorted(problems, key=lambda problem: (order.index(problem.file), problem.line))


def _same(extra: Path | None, path: Path) -> bool:
    return extra is not None and extra.exists() and extra.samefile(path)


def _unique(entries: list[Entry]) -> tuple[list[Entry], list[Problem]]:
    unique, problems = [], []
    owners: dict[str, Entry] = {}  # by name or alias, whatever the case: names become file names
    for entry in entries:
        words = [entry.spec.name, *entry.spec.aliases]
        taken = next((word for word in words if word.casefold() in owners), None)
        if len(set(map(str.casefold, words))) < len(words):
            problems.append(entry.problem(f"{entry.label} has one name twice among its aliases", "aliases"))
        elif taken is None:
            unique.append(entry)
            owners |= {word.casefold(): entry for word in words}
        elif not _is_copy(entry, owner := owners[taken.casefold()]):
            place = f"{owner.where.file}:{owner.where()}"
            problems.append(entry.problem(f'{entry.label}: "{taken}" is taken by {owner.label} ({place}); choose another name'))
    return unique, problems


def _is_copy(entry: Entry, owner: Entry) -> bool:
    """A copy of a packaged entry is no second one: the working folder may be a clone of the project that is installed."""
    return entry.spec == owner.spec and entry.where.file != owner.where.file


def _link_task(registry: Registry, entry: Entry, broken: set[str]) -> list[Problem]:
    """Put the task into the registry, under the names its image set and protocol really have."""
    task, parts, problems = entry.spec, {}, []
    for axis in AXES:
        section, word = f"{axis}s", getattr(task, axis)
        known = registry.words(section)
        if word in known:
            parts[axis] = known[word]
        elif word not in broken:
            problems.append(
                entry.problem(f'{entry.label} names the unknown {LABELS[section]} "{word}"{nearest(word, known)}', axis)
            )
    if len(parts) == len(AXES):
        title = task.title or ", ".join(part.title for part in parts.values())
        names = {axis: part.name for axis, part in parts.items()}
        registry.tasks[task.name] = task.model_copy(update={"title": title, **names})
        if reason := _unmeasured(task.metric or parts["imageset"].metric, parts["protocol"]):
            problems.append(entry.problem(f"{entry.label} is told by {reason}", *["metric"] * bool(task.metric)))
    return problems


def _link_references(registry: Registry, entry: Entry, broken: set[str]) -> list[Problem]:
    """Let reference scores stand under the names their tasks really have."""
    known, backbone = registry.words("tasks"), entry.spec
    linked, problems = {}, []
    for word, score in backbone.reference.items():
        if word not in known:
            if word not in broken:
                sentence = f'{entry.label} has a reference score for the unknown task "{word}"{nearest(word, known)}'
                problems.append(entry.problem(sentence, "reference", word))
            continue
        if reason := _unmeasured(score.metric, registry.protocols[known[word].protocol]):
            problems.append(entry.problem(f"{entry.label} has a reference score in {reason}", "reference", word))
        linked[known[word].name] = score
    registry.backbones[backbone.name] = backbone.model_copy(update={"reference": linked})
    return problems


def _unmeasured(metric: str, protocol: ProtocolSpec) -> str | None:
    """Found out here, not after the training of a detector."""
    if metric in protocol.metrics:
        return None
    known = nearest(metric, protocol.metrics) or f"; set `metric`, to {protocol.metrics[0]} or another"
    return f'"{metric}", which {protocol.name} does not measure{known}'
