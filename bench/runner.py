"""From two names to numbers: plan, then for each backbone and image set one pass of the images, then a probe for each task."""

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench import plan as planning
from bench import results
from bench.plan import Cell, Plan
from bench.registry import Registry
from ringbench import files, places, progress
from ringbench.errors import RingbenchError, Unavailable

LIBRARIES = ("ringbench", "torch", "torchvision", "numpy", "scikit-learn", "pillow")


def execute(plan: Plan, *, results_dir: Path, data_dir: Path, options: dict) -> Iterator[Cell]:
    """Measure every cell of the plan that is to be run and yield each cell as soon as its fate is known.

    A cell's `state` ends as done, measured, failed or unavailable. A failure is written down and the rest goes on.
    `options`: device, dtype, on_bad_image, download, debug.
    """
    for cells in plan.groups():
        yield from (cell for cell in cells if cell.state == "unavailable")
        present = [cell for cell in cells if cell.state != "unavailable"]
        if present:
            yield from _measure_group(present, results_dir, data_dir, options)


def _measure_group(cells: list[Cell], results_dir: Path, data_dir: Path, options: dict) -> Iterator[Cell]:
    first, clock = cells[0], _Clock()
    try:
        from imagesets import image_set as imagesets

        with clock("open"):
            images = imagesets.load(first.imageset, data_dir, download=options["download"])
            weights_sha256 = _weights_sha256(first, options["download"])
        inputs = {id(cell): _inputs(cell, images, weights_sha256, options) for cell in cells}
        yield from (_confirm(cell, inputs[id(cell)]) for cell in cells if cell.state == "done")
        to_run = [cell for cell in cells if cell.state == "run"]
        if not to_run:
            return
        backbone, pipeline, features, notes = _extract(to_run, images, options, clock)
    except Unavailable as error:
        yield from (_close(cell, "unavailable", str(error)) for cell in cells)
        return
    except Exception as error:
        if options["debug"]:
            raise
        yield from (_fail(cell, error, results_dir) for cell in cells)
        return
    for cell in to_run:
        yield _measure(cell, images, backbone, pipeline, features, notes, inputs[id(cell)], results_dir, options, clock)


def _extract(cells: list[Cell], images, options: dict, clock: "_Clock"):
    """Load the backbone and bring features of all levels these cells need, each image passing the trunk once."""
    from backbones import loading
    from backbones.device import resolve_device, resolve_dtype
    from imagesets.pipeline import parse
    from imagesets.statistics import channel_statistics
    from transfer.features import extract

    spec, imageset, on_bad = cells[0].backbone, cells[0].imageset, options["on_bad_image"]
    device, dtype = resolve_device(options["device"]), resolve_dtype(options["dtype"])
    with clock("load"):
        backbone = loading.load(spec, seed=cells[0].seed, device=device, dtype=dtype, download=options["download"])
    pipeline = parse(spec.pipeline).with_geometry(imageset.geometry)
    if pipeline.needs_statistics:
        with clock("statistics"), progress.bar(f"{imageset.name} statistics") as update:
            pipeline = pipeline.resolve(*channel_statistics(images, places.cache(), progress=update, on_bad=on_bad))
    backbone = backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std)
    levels = sorted({cell.protocol.level for cell in cells})
    features = {}
    with clock("extract"):
        for split, indices in (("trainval", images.trainval), ("test", images.splits["test"])):
            with progress.bar(f"{spec.name} on {imageset.name}, {split}") as update:
                cache = places.cache() / "features"
                features[split] = extract(
                    backbone, pipeline, images, indices, levels, cache, on_bad_image=on_bad, progress=update
                )
    return backbone, pipeline, features, [*images.notes, *_size_notes(images, pipeline, spec)]


def _measure(cell, images, backbone, pipeline, features, notes, inputs, results_dir, options, clock) -> Cell:
    from backbones.trunk import trunk_sha256
    from transfer.protocols import measure

    level, device = cell.protocol.level, str(backbone.device)
    trainval, test = features["trainval"][level], features["test"][level]
    try:
        with clock("probe"), progress.bar(f"{cell.label}") as update:
            outcome = measure(cell.protocol, images, trainval, test, seed=cell.seed, device=device, progress=update)
        if trunk_sha256(backbone.trunk) != backbone.certificate["trunk_sha256"]:
            raise RingbenchError(f"the weights of {cell.backbone.name} changed during the run; this is a fault of ringbench")
    except Exception as error:
        if options["debug"]:
            raise
        return _fail(cell, error, results_dir)
    reference = cell.backbone.reference.get(cell.task.name)
    record = (
        _identity(cell)
        | outcome
        | {
            "status": "ok",
            "metric": cell.imageset.metric,
            "inputs": inputs,
            "trunk_sha256": backbone.certificate["trunk_sha256"],
            "certificate": backbone.certificate,
            "certificate_sha256": files.digest(backbone.certificate),
            "fingerprint": images.fingerprint,
            "split_hash": images.split_hash,
            "pipeline": str(pipeline),
            "level": level,
            "skipped_images": len(trainval.skipped) + len(test.skipped),
            "reference": reference.model_dump() if reference else None,
            "device": device,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "versions": {name: metadata.version(name) for name in LIBRARIES} | {"python": platform.python_version()},
            "seconds": clock.seconds(),
            "features_cached": trainval.cached and test.cached,
            "notes": outcome["notes"] + notes,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )
    record["delta"], record["off_reference"] = results.reference_delta(record)
    record["status"], record["reasons"] = results.judge(record, results.read_all(results_dir))
    results.write(results_dir, record)
    cell.state, cell.reason = "measured", str(cell.path)
    return cell


def _identity(cell: Cell) -> dict:
    return {
        "backbone": cell.backbone.name,
        "task": cell.task.name,
        "protocol": cell.protocol.name,
        "imageset": cell.imageset.name,
        "seed": cell.seed,
    }


def _inputs(cell: Cell, images, weights_sha256: str, options: dict) -> dict[str, str]:
    """What the number depends on, part by part, so that a stale result can be told from a valid one."""
    backbone, protocol = cell.backbone, cell.protocol
    return {
        "weights": weights_sha256,
        "backbone": files.digest(backbone.model_dump(include={"arch", "stem", "format", "checkpoint_key", "pipeline"})),
        "protocol": files.digest(protocol.model_dump(mode="json", include={"probe", "level", "settings"})),
        "images": files.digest([images.fingerprint, images.split_hash, cell.imageset.geometry, cell.imageset.metric]),
        "dtype": options["dtype"],
    }


def _weights_sha256(cell: Cell, download: bool) -> str:
    from backbones import sources

    path = sources.require(cell.backbone, download=download)
    seed = cell.seed if cell.backbone.seed is None else cell.backbone.seed
    return files.sha256_file(path) if path else f"random:{seed}"


def _confirm(cell: Cell, inputs: dict[str, str]) -> Cell:
    """A result that is already there stands only if what it depends on is still the same."""
    record = results.read(cell.path)
    changed = [part for part, value in inputs.items() if record.get("inputs", {}).get(part) != value]
    if changed:
        cell.state = "failed"
        cell.reason = f"{cell.path} was measured with other {', '.join(changed)}; --force replaces it, --results DIR keeps both"
    return cell


def _size_notes(images, pipeline, spec) -> list[str]:
    height, width = images.read(int(images.trainval[0])).shape[:2]
    native, used = min(height, width), min(pipeline.size or (height, width))
    notes = [f"images of {native} px are enlarged to {used} px"] if used > 1.5 * native else []
    if used < 64 and spec.stem == "imagenet":
        notes.append(f"an input of {used} px leaves a {-(-used // 32)} px res5 map behind the imagenet stem")
    return notes


def _close(cell: Cell, state: str, reason: str) -> Cell:
    """A result that is already there is not undone by data or weights that have gone since."""
    if cell.state != "done":
        cell.state, cell.reason = state, reason
    return cell


def _fail(cell: Cell, error: Exception, results_dir: Path) -> Cell:
    if _close(cell, "failed", _sentence(error)).state == "failed":
        failure = {"status": "failed", "reasons": [cell.reason], "metric": cell.imageset.metric, "metrics": {}}
        results.write(results_dir, _identity(cell) | failure)
    return cell


def _sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, RingbenchError) else f"{type(error).__name__}: {text.splitlines()[0]} (--debug shows where)"


class _Clock:
    """Seconds spent in each named stage."""

    def __init__(self) -> None:
        self._spent: Counter = Counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[stage] = time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        return {stage: round(spent, 3) for stage, spent in self._spent.items()}
