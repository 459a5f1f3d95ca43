"""`bench doctor`: what works on this machine, and exactly what is missing. Whatever is broken, it goes on and says so."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table

from backbones.spec import BackboneSpec
from bench import registry, setup_detection, showing
from bench.page import page
from bench.registry import Registry
from ringbench import places
from ringbench.errors import RingbenchError
from ringbench.spec import Spec
from transfer.spec import DETECTION

PACKAGES = ("ringbench", "torch", "torchvision", "timm", "scikit-learn", "numpy", "pillow", "pydantic")
OPTIONAL = {
    "detectron2": setup_detection.COMMAND,
    "tensorflow-datasets": "pip install 'ringbench[tfds]'",
    "submitit": "pip install 'ringbench[slurm]'",
}
Rows = Iterator[tuple[str, str]]


def main(extra: Path | None) -> None:
    known, problems = _registry(extra)
    sections = {
        "MACHINE": _machine,
        "VERSIONS": _versions,
        "PLACES": _places,
        "REGISTRY": lambda: problems,
        "BACKBONES": lambda: _entries(known, "backbones"),
        "IMAGE SETS": lambda: _entries(known, "imagesets"),
        "TASKS": lambda: _tasks(known),
    }
    with page() as out:
        for title, rows in sections.items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True, min_width=12)
            table.add_column(overflow="fold")
            for row in _guarded(rows):
                table.add_row(*row)
            out.print(title, style="bold")
            out.print(table)
            if title != "TASKS":
                out.print()


def _guarded(rows: Callable[[], Rows]) -> Rows:
    try:
        yield from rows()
    except Exception as error:  # a doctor who falls ill helps nobody
        yield "not known", f"{type(error).__name__}: {error}"


def _registry(extra: Path | None) -> tuple[Registry, list[tuple[str, str]]]:
    try:
        path = extra or registry.overlay()
        known, problems = registry.check(path)
        rows = [
            ("packaged", f"{registry.PACKAGED}, {registry.ENCODERS.name}"),
            ("your own", str(path or f"none (./registry.yaml or {places.home()}/registry.yaml)")),
        ]
        return known, rows + [("problem", str(problem)) for problem in problems]
    except RingbenchError as error:
        return registry.check(None)[0], [("problem", str(error))]


def _machine() -> Rows:
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    import joblib

    memory = f", {decimal(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))} memory" if hasattr(os, "sysconf") else ""
    yield "cpu", f"{os.cpu_count()} cores, {joblib.cpu_count()} for this process{memory}"
    import torch

    from backbones.device import resolve_device

    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}", f"{device.name}, {decimal(device.total_memory)} memory"
    if torch.backends.mps.is_available():
        yield "mps", "available"
    yield "auto", f"--device auto is {resolve_device('auto')}"


def _versions() -> Rows:
    yield "python", platform.python_version()
    for package in PACKAGES:
        yield package, _version(package) or "not installed"
    for package, how in OPTIONAL.items():
        yield package, _version(package) or f"not installed (optional): {how}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _places() -> Rows:
    for name, path in {"BENCH_HOME": places.home(), "BENCH_DATA": places.data()}.items():
        origin = "from the environment" if os.environ.get(name) else "default"
        yield name, f"{path} ({origin}{'' if path.exists() else ', not there yet'})"
    for name, path in {"cache": places.cache(), "checkpoints": places.checkpoints()}.items():
        yield name, f"{decimal(sum(file.stat().st_size for file in path.rglob('*') if file.is_file()))} in {path}"
    results = Path("results").absolute()
    yield "results", f"{len(list(results.glob('*/*/*.json')))} files in {results} (--results DIR)"
    there = next(path for path in (places.home(), *places.home().parents) if path.exists())
    yield "disk", f"{decimal(shutil.disk_usage(there).free)} free at {there}"


def _entries(known: Registry, section: str) -> Rows:
    for spec in getattr(known, section).values():
        yield spec.name, _illness(known, spec) or "available"


def _illness(known: Registry, spec: Spec) -> str | None:
    from backbones import sources

    try:
        if isinstance(spec, BackboneSpec):
            sources.require(spec)  # also compares the digest of a file that is there
        return showing.missing(known, spec)
    except RingbenchError as error:
        return str(error).removeprefix(f"{spec.name}: ")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _tasks(known: Registry) -> Rows:
    """Tasks share the fate of their image set, so they are told together."""
    absent = {name: _illness(known, spec) for name, spec in known.imagesets.items()}
    there = [task for task in known.tasks.values() if not absent[task.imageset]]
    detectors = [task.name for task in there if known.protocols[task.protocol].probe == DETECTION]
    without = setup_detection.missing() if detectors else None
    ready = [task.name for task in there if not (without and task.name in detectors)]
    yield "available", ", ".join(ready) or "none"
    if without:
        yield "unavailable", f"{', '.join(detectors)}: {without}"
    for imageset in filter(absent.get, absent):
        waiting = [task.name for task in known.tasks.values() if task.imageset == imageset]
        if waiting:
            yield "unavailable", f"{', '.join(waiting)}: without image set {imageset}"
