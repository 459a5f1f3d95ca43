"""`bench list`: what there is, by name, at once. Imports no torch, no numpy and no rich."""

import json

import typer

from backbones.spec import BackboneSpec
from bench.registry import Registry
from imagesets.spec import ImagesetSpec
from ringbench.spec import Spec
from transfer.spec import ProtocolSpec, TaskSpec


def as_json(registry: Registry, sections: list[str]) -> str:
    """{section: [entry, ...]}, defaults filled in."""
    found = {section: [spec.model_dump(mode="json") for spec in getattr(registry, section).values()] for section in sections}
    return json.dumps(found, indent=2) + "\n"


def show_sections(registry: Registry, sections: list[str]) -> None:
    for number, section in enumerate(sections):
        if number:
            print()
        table(section, [_row(spec) for spec in getattr(registry, section).values()])


def table(title: str, rows: list[dict[str, str]]) -> None:
    """Columns as wide as their widest cell, empty ones left out. Rich's tables are prettier, and half of `bench list`'s time."""
    typer.secho(title.upper(), bold=True)
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    for number, row in enumerate([{name: name for name in columns}, *rows] if columns else []):
        typer.secho("  ".join(row[name].ljust(widths[name]) for name in columns).rstrip(), dim=number == 0)


def _row(spec: Spec) -> dict[str, str]:
    match spec:
        case BackboneSpec():
            cells = {"arch": spec.arch, "pretraining": spec.pretraining, "weights": _weights(spec.source)}
        case ImagesetSpec():
            cells = {"classes": str(spec.classes or ""), "metric": spec.metric, "provider": spec.provider, "title": spec.title}
        case ProtocolSpec():
            cells = {"probe": spec.probe, "level": spec.level, "title": spec.title}
        case TaskSpec():
            cells = {"image set": spec.imageset, "protocol": spec.protocol}
    return {"name": spec.name, **cells, "aliases": ", ".join(spec.aliases)}


def _weights(source: str) -> str:
    kind = source.partition(":")[0]
    return kind if kind in {"random", "recipe"} else "URL" if kind in {"http", "https", "hf"} else "file"
