"""`bench show`: one entry of the registry, and what it lacks on this machine. Imports no torch and no numpy."""

import json
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from backbones.spec import BackboneSpec
from bench import setup_detection
from bench.entries import LABELS
from bench.page import page
from bench.registry import Registry
from imagesets.spec import ImagesetSpec
from ringbench import places
from ringbench.errors import RingbenchError
from ringbench.spec import Spec
from transfer.spec import DETECTION, ProtocolSpec, TaskSpec


def show_entry(registry: Registry, name: str) -> None:
    section, spec = registry.locate(name)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _facts(registry, spec).items():
        if value not in (None, "", [], {}):
            table.add_row(label, _text(value))
    with page() as out:
        out.print(f"{LABELS[section]} {spec.name}" + (f" ({name} is an alias)" if name != spec.name else ""), style="bold")
        out.print(table)


def _facts(registry: Registry, spec: Spec) -> dict[str, Any]:
    facts = {"title": spec.title, "aliases": spec.aliases}
    match spec:
        case BackboneSpec():
            facts |= spec.model_dump(exclude={"name", "title", "aliases", "reference", "published"})
            facts["reference"] = {task: f"{score.metric} {score.score}" for task, score in spec.reference.items()}
            facts["published"] = "\n".join(_published(spec))
            facts["certificate"] = _certificate(spec)
        case ImagesetSpec():
            facts |= spec.model_dump(exclude={"name", "title", "aliases"})
            facts["tasks"] = [task.name for task in registry.tasks.values() if task.imageset == spec.name]
        case ProtocolSpec():
            facts |= spec.model_dump(exclude={"name", "title", "aliases"})
            facts["tasks"] = [task.name for task in registry.tasks.values() if task.protocol == spec.name]
        case TaskSpec():
            protocol, imageset = registry.protocols[spec.protocol], registry.imagesets[spec.imageset]
            facts |= {"image set": spec.imageset, "metric": spec.metric or imageset.metric, "geometry": imageset.geometry}
            facts |= {"protocol": spec.protocol, **protocol.model_dump(include={"probe", "level", "settings", "source"})}
    return facts | {"available": missing(registry, spec) or "yes", "written in": registry.places[spec.name]}


def _published(spec: BackboneSpec) -> Iterator[str]:
    for score in spec.published:
        spread = f" ± {score.std}" if score.std is not None else ""
        yield f"{score.metric} {score.score}{spread} ({score.source or spec.origin})"


def _certificate(spec: BackboneSpec) -> dict[str, Any]:
    """What `bench register` found in the file."""
    path = places.certificate(spec.sha256 or "none")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def missing(registry: Registry, spec: Spec) -> str | None:
    """Why an entry cannot be used on this machine, in one sentence, or None."""
    from backbones import sources
    from imagesets import providers

    try:
        match spec:
            case BackboneSpec():
                return sources.missing(spec)
            case ImagesetSpec():
                return providers.missing(spec, places.data())
            case TaskSpec():
                detector = registry.protocols[spec.protocol].probe == DETECTION
                return missing(registry, registry.imagesets[spec.imageset]) or (setup_detection.missing() if detector else None)
    except RingbenchError as error:
        return str(error)
    return None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
