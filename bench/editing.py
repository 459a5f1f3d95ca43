"""`bench register`: a checkpoint gets a name in the user's registry, once it has been read whole.

The entry is spliced into the text, so that every byte a person wrote stays: a YAML round trip would indent anew and leave the
comment above the next section above the new entry instead.
"""

from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from backbones.spec import BackboneSpec
from bench import registry
from imagesets.spec import ImagesetSpec
from ringbench import files, places, yaml_lines
from ringbench.errors import RingbenchError, UsageError

HEADER = "# Entries of your own, beside those that come with ringbench; `bench validate` checks them.\n"
PATIENCE_S = 60
DRIFT_IMAGES = 256


def register(
    extra: Path | None,
    name: str,
    checkpoint: Path,
    arch: str | None = None,
    format: str = "auto",
    checkpoint_key: str | None = None,
    pipeline: str | None = None,
    aliases: list[str] | None = None,
    stem: str | None = None,
    imageset: str | None = None,
) -> None:
    """Read the checkpoint, write it to the registry `extra` (default: the overlay in use) and say what was written.

    With an `imageset` the drift of its images under the pipeline is told too. The certificate goes to `places.certificate`.
    Raises UsageError for a taken name and whatever `backbones.loading.load` refuses; nothing is written then.
    """
    try:
        str(checkpoint.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name of {checkpoint} is not text, and a registry is; rename the file") from None
    from backbones import loading
    from bench.convert import described, left_out

    path = target(extra)
    found = described(checkpoint, arch, stem, format, checkpoint_key, pipeline)
    fields = {
        "title": name,
        "aliases": aliases,
        "arch": found.arch,
        "stem": found.stem,
        "source": _source(checkpoint, path.parent),
        "format": found.format,
        "checkpoint_key": checkpoint_key,
        "sha256": files.sha256_file(checkpoint),
        "pipeline": found.pipeline,
    }
    fields = {key: value for key, value in fields.items() if value}
    _, spec = draft(path, name, fields)
    backbone = loading.load(spec)
    certificate = backbone.certificate
    drift = (
        _drift(backbone, spec, registry.load(path if path.exists() else extra).find("imagesets", imageset)) if imageset else None
    )
    add_backbone(path, name, fields)
    files.write_json(places.certificate(fields["sha256"]), certificate | ({"drift": drift} if drift else {}))
    origin = "" if pipeline else f" (usual for {spec.format} files; change it there if it was trained with another)"
    print(f"registered {name} in {path}")
    print(f"  arch      {spec.arch}, {spec.stem} stem: all {certificate['matched']} tensors found")
    print(
        f"  format    {spec.format}, trunk at {'.'.join(filter(None, (certificate['path'], certificate['prefix']))) or 'the top'}"
    )
    print(f"  left out  {left_out(certificate)}")
    if certificate["assumed"]:
        print(f"  assumed   {certificate['assumed']} (the file does not show it; --stem says otherwise)")
    print(f"  pipeline  {spec.pipeline}{origin}")
    if drift:
        told = drift["warning"] or f"{imageset} looks like the inputs of training"
        print(f"  drift     {told} ({', '.join(f'{place} {value:.2g}' for place, value in drift['distances'].items())})")
    print(f"Try it: bench run --backbone {name} --task digits_knn")


def _drift(backbone: Any, spec: BackboneSpec, imageset: ImagesetSpec) -> dict[str, Any]:
    from backbones.drift import by_stage
    from bench import inputs
    from imagesets import image_set
    from imagesets.pipeline import parse
    from imagesets.statistics import channel_statistics

    images = image_set.load(imageset, places.data())
    pipeline = parse(spec.pipeline)
    if pipeline.needs_statistics:
        pipeline = pipeline.resolve(*channel_statistics(images))
    backbone = backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std)
    found, pixels = inputs.measure(backbone, pipeline, images, DRIFT_IMAGES)
    return {
        "imageset": imageset.name,
        "images": len(pixels),
        "distances": {"first": found.distance, **by_stage(backbone, pixels)},
        "best": found.best,
        "best_distance": found.best_distance,
        "warning": found.warning,
    }


def target(extra: Path | None) -> Path:
    """The registry that new entries go to: `extra`, or the overlay in use, or the one at home, which may not be there yet."""
    return (extra or registry.overlay() or places.home() / "registry.yaml").resolve()


def add_backbone(path: Path, name: str, fields: dict[str, Any], replace: bool = False) -> BackboneSpec:
    """Add an entry to the registry file, which is made where there is none. Two processes that add at once both succeed.

    Raises UsageError if the entry is not sound, or its name is taken and it is not to `replace` that entry.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=PATIENCE_S):
            text, spec = draft(path, name, fields, replace)
            files.write_text(path, text)
    except Timeout:
        raise RingbenchError(f"{path} has been locked by another process for {PATIENCE_S} s; try again later") from None
    return spec


def _source(checkpoint: Path, folder: Path) -> str:
    """Relative where the file lies below the registry, so that the two can move together."""
    checkpoint = checkpoint.absolute()
    return f"./{checkpoint.relative_to(folder).as_posix()}" if checkpoint.is_relative_to(folder) else str(checkpoint)


def draft(path: Path, name: str, fields: dict[str, Any], replace: bool = False) -> tuple[str, BackboneSpec]:
    """The registry's text with the new entry, checked as a whole, and what the entry means. Errors as in `add_backbone`."""
    exists = path.exists()
    known = registry.load(path if exists else registry.PACKAGED)
    if name in known.backbones and not replace:
        raise UsageError(f'the name "{name}" is taken ({known.places[name]}); choose another')
    old = path.read_bytes().decode() if exists else HEADER
    new = _splice(_without(old, name) if replace else old, name, fields)
    wanted = yaml_lines.read(old).value or {}
    wanted["backbones"] = (wanted.get("backbones") or {}) | {name: fields}
    if yaml_lines.read(new).value != wanted:
        raise UsageError(f"{path} is laid out in a way that cannot be added to; add this yourself:\n{_block(name, fields)}")
    known, problems = registry.check(path, new)
    if problems:
        raise UsageError(problems[0].sentence)
    return new, known.backbones[name]


def _without(text: str, name: str) -> str:
    """The text without the entry, where it has lines of its own."""
    root = yaml.compose(text, Loader=yaml_lines.LOADER)
    sections = [section for key, section in root.value if key.value == "backbones"] if root else []
    entries = sections[0].value if sections and isinstance(sections[0], yaml.MappingNode) else ()
    for key, entry in entries:
        if key.value == name:
            start, end = key.start_mark.index - key.start_mark.column, text.find("\n", _end(entry) - 1) + 1
            return text[:start] + text[end or len(text) :]
    return text


def _splice(text: str, name: str, fields: dict[str, Any]) -> str:
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, Loader=yaml_lines.LOADER)
    section = next((value for key, value in root.value if key.value == "backbones"), None) if root else None
    if section is None:
        at, indent, opening = len(text), 2, "\nbackbones:\n"
    elif isinstance(section, yaml.MappingNode) and section.value:
        at, indent, opening = _end(section), section.value[0][0].start_mark.column, "\n"
    else:  # `backbones:` with nothing in it, or {} or null
        at, indent, opening = section.start_mark.index, 2, ""
        text = text[:at] + text[section.end_mark.index :]
    if at and text[at - 1] != "\n":  # behind whatever else stands in the line
        at = text.find("\n", at) + 1 or len(text)
    if at == len(text) and root and text[-1:] != "\n" and getattr(_last(root), "style", None) in ("|", ">"):
        first = (section or root).value[0][0].start_mark  # before, not behind: a block of text would gain a line end
        at, opening = first.index - first.column, opening.lstrip("\n")
    before, after = text[:at], text[at:]
    if before and not before.endswith("\n"):
        before += end_of_line
    lines = [f"{' ' * indent}{line}" for line in _block(name, fields).splitlines(keepends=True)]
    return before + (opening + "".join(lines)).replace("\n", end_of_line) + after


def _end(node: yaml.Node) -> int:
    """Where the last character of a block ends; the mark of the block itself lies behind the comments that follow it."""
    return _last(node).end_mark.index


def _last(node: yaml.Node) -> yaml.Node:
    """The last scalar of a block, or what is written in brackets there."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return node


def _block(name: str, fields: dict[str, Any]) -> str:
    return yaml.safe_dump({name: fields}, sort_keys=False, allow_unicode=True, width=float("inf"))
