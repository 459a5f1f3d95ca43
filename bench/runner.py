"""From two names to numbers: plan, then for each backbone and image set one pass of the images, then a probe for each task."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from backbones import loading, sources
from backbones.device import resolve_device, resolve_dtype
from backbones.trunk import FrozenBackbone, trunk_sha256
from bench import results
from bench.plan import Cell, Plan
from imagesets import image_set as imagesets
from imagesets import pipeline as pipelines
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from imagesets.statistics import channel_statistics
from ringbench import __version__, files, places, progress
from ringbench.clock import Clock
from ringbench.errors import RingbenchError, Unavailable
from transfer.features import Features, extract, is_cached
from transfer.protocols import measure

LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "pillow")


@dataclass(frozen=True)
class Options:
    """How to run, whatever is run: what `bench run` was given beside names."""

    results: Path
    data: Path
    device: str = "auto"
    dtype: str = "auto"
    on_bad_image: str = "stop"
    download: bool = False
    debug: bool = False


@dataclass(frozen=True)
class Prepared:
    """One backbone ready for one image set."""

    images: ImageSet
    backbone: FrozenBackbone
    pipeline: Pipeline
    notes: list[str]


def execute(plan: Plan, options: Options) -> Iterator[Cell]:
    """Measure every cell that is to be run and yield each cell as soon as its fate is known.

    A cell's `state` ends as done, measured, failed or unavailable. A failure is written down and the rest goes on.
    Raises UsageError or Unavailable for a device or dtype that cannot be had.
    """
    resolve_device(options.device), resolve_dtype(options.dtype)  # a wrong name is a wrong request, not a failed cell
    for cells in plan.groups():
        yield from _measure_group(cells, options)


def _measure_group(cells: list[Cell], options: Options) -> Iterator[Cell]:
    clock = Clock()
    try:
        with clock("open"):
            images = imagesets.load(cells[0].imageset, options.data, download=options.download)
            weights = _weights(cells[0], options)
        inputs = {cell.task.name: _inputs(cell, images, weights, options) for cell in cells}
        yield from (_confirm(cell, inputs[cell.task.name]) for cell in cells if cell.state == "done")
        cells = [cell for cell in cells if cell.state == "run"]
        if not cells:
            return
        prepared = _prepare(cells[0], images, options, clock)
        features = _extract(cells, prepared, options, clock)
    except Unavailable as error:
        yield from (_close(cell, "unavailable", str(error)) for cell in cells)
        return
    except Exception as error:
        if options.debug:
            raise
        yield from (_fail(cell, error, options.results) for cell in cells)
        return
    for cell in cells:
        try:
            yield _measure(cell, prepared, features[cell.protocol.level], inputs[cell.task.name], options, Clock(clock))
        except Exception as error:
            if options.debug:
                raise
            yield _fail(cell, error, options.results)


def _prepare(cell: Cell, images: ImageSet, options: Options, clock: Clock) -> Prepared:
    """Load the backbone and fill in what its pipeline takes from the image set."""
    spec, device, dtype = cell.backbone, resolve_device(options.device), resolve_dtype(options.dtype)
    with clock("load"):
        backbone = loading.load(spec, seed=cell.seed, device=device, dtype=dtype, download=options.download)
    pipeline = pipelines.parse(spec.pipeline).with_geometry(cell.imageset.geometry)
    if pipeline.needs_statistics:
        with clock("statistics"), progress.bar(f"{cell.imageset.name} statistics") as update:
            pipeline = pipeline.resolve(*channel_statistics(images, progress=update, on_bad=options.on_bad_image))
    backbone = backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std)
    return Prepared(images, backbone, pipeline, [*images.notes, *_size_notes(images, pipeline, spec.stem)])


def _extract(cells: list[Cell], prepared: Prepared, options: Options, clock: Clock) -> dict[str, tuple[Features, Features]]:
    """level -> (trainval, test) features of all levels these cells need, each image passing the trunk once."""
    levels, images, halves = sorted({cell.protocol.level for cell in cells}), prepared.images, []
    for split, indices in (("trainval", images.trainval), ("test", images.splits["test"])):
        with clock("extract"), progress.bar(f"{cells[0].backbone.name} on {images.spec.name}, {split}") as update:
            halves.append(
                extract(
                    prepared.backbone,
                    prepared.pipeline,
                    images,
                    indices,
                    levels,
                    _cache(),
                    on_bad_image=options.on_bad_image,
                    progress=update,
                )
            )
    return {level: (halves[0][level], halves[1][level]) for level in levels}


def _measure(
    cell: Cell,
    prepared: Prepared,
    features: tuple[Features, Features],
    inputs: dict[str, str],
    options: Options,
    clock: Clock,
) -> Cell:
    images, backbone, device = prepared.images, prepared.backbone, str(prepared.backbone.device)
    trainval, test = features
    with clock("probe"), progress.bar(cell.label) as update:
        outcome = measure(cell.protocol, images, trainval, test, seed=cell.seed, device=device, progress=update)
    if trunk_sha256(backbone.trunk) != backbone.certificate["trunk_sha256"]:
        raise RingbenchError(f"the weights of {cell.backbone.name} changed during the run; this is a fault of ringbench")
    reference = cell.backbone.reference.get(cell.task.name)
    record = {
        **_identity(cell),
        **outcome,
        "status": "ok",
        "metric": cell.imageset.metric,
        "inputs": inputs,
        "trunk_sha256": backbone.certificate["trunk_sha256"],
        "certificate": backbone.certificate,
        "certificate_sha256": files.digest(backbone.certificate),
        "fingerprint": images.fingerprint,
        "split_hash": images.split_hash,
        "pipeline": str(prepared.pipeline),
        "level": cell.protocol.level,
        "skipped_images": len(trainval.skipped) + len(test.skipped),
        "reference": reference.model_dump() if reference else None,
        "device": device,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "versions": {"ringbench": __version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in LIBRARIES},
        "seconds": clock.seconds(),
        "features_cached": trainval.cached and test.cached,
        "notes": outcome["notes"] + prepared.notes,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    record["delta"], record["off_reference"] = results.reference_delta(record)
    record["status"], record["reasons"] = results.judge(record, results.read_all(options.results))
    results.write(options.results, record)
    return _close(cell, "measured", str(cell.path))


def cost(cell: Cell, options: Options) -> str:
    """What a cell that is to be run will take, in words: images through the trunk, and disk for their features."""
    images = imagesets.load(cell.imageset, options.data)
    prepared = _prepare(cell, images, options, Clock())
    level, dtype, key = cell.protocol.level, prepared.backbone.dtype, prepared.backbone.certificate["trunk_sha256"]
    halves = images.trainval, images.splits["test"]
    if all(is_cached(key, prepared.pipeline, images, half, level, dtype, _cache()) for half in halves):
        return "features cached"
    image = torch.from_numpy(prepared.pipeline.prepare(images.read(int(halves[0][0])))).permute(2, 0, 1)
    (row,) = prepared.backbone(image[None], [level])[level]
    (_, height, width), n = image.shape, sum(map(len, halves))
    return f"{n:,} images of {height} x {width} px through the trunk, {n * row.nbytes / 1e9:.2f} GB of features"


def _cache() -> Path:
    return places.cache() / "features"


def _identity(cell: Cell) -> dict:
    return {
        "backbone": cell.backbone.name,
        "task": cell.task.name,
        "protocol": cell.protocol.name,
        "imageset": cell.imageset.name,
        "seed": cell.seed,
    }


def _inputs(cell: Cell, images: ImageSet, weights: str, options: Options) -> dict[str, str]:
    """What the number depends on, part by part, so that a stale result can be told from a valid one."""
    backbone, protocol = cell.backbone, cell.protocol
    return {
        "weights": weights,
        "backbone": files.digest(backbone.model_dump(include={"arch", "stem", "format", "checkpoint_key", "pipeline"})),
        "protocol": files.digest(protocol.model_dump(mode="json", include={"probe", "level", "settings"})),
        "images": files.digest([images.fingerprint, images.split_hash, cell.imageset.geometry, cell.imageset.metric]),
        "dtype": str(resolve_dtype(options.dtype)),
    }


def _weights(cell: Cell, options: Options) -> str:
    """The sha256 of the file, or the seed of random weights."""
    path = sources.require(cell.backbone, download=options.download)
    seed = cell.seed if cell.backbone.seed is None else cell.backbone.seed
    return files.sha256_file(path) if path else f"random, seed {seed}"


def _confirm(cell: Cell, inputs: dict[str, str]) -> Cell:
    """A result that is already there stands only if what it depends on is still the same."""
    record = results.read(cell.path)
    changed = [part for part, value in inputs.items() if record.get("inputs", {}).get(part) != value]
    if changed:
        cell.state = "failed"
        cell.reason = f"{cell.path} was measured with other {', '.join(changed)}; --force replaces it, --results DIR keeps both"
    return cell


def _size_notes(images: ImageSet, pipeline: Pipeline, stem: str) -> list[str]:
    """CASES D5: small images before a stem that shrinks them by four, and what the pipeline did about it."""
    image = images.read(int(images.trainval[0]))
    native, used = min(image.shape[:2]), min(pipeline.prepare(image).shape[:2])
    notes = [f"images are enlarged, the first from {native} to {used} px"] if used > 1.5 * native else []
    if used < 64 and stem == "imagenet":
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
