"""From two names to numbers: plan, then for each backbone and image set one pass of the images, then a probe for each task."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backbones import loading, sources
from backbones.device import resolve_device, resolve_dtype
from backbones.trunk import FrozenBackbone
from bench import provenance, results
from bench.costs import feature_cache, first_readable
from bench.inputs import measure as input_drift
from bench.plan import Cell, Options, Plan
from imagesets import image_set as imagesets
from imagesets import pipeline as pipelines
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from imagesets.statistics import channel_statistics
from ringbench import files, progress
from ringbench.clock import Clock
from ringbench.errors import RingbenchError, Unavailable
from transfer import probes
from transfer.features import Features, extract
from transfer.protocols import measure

DRIFT_IMAGES = 64


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
            images.require_measurable()
            weights = _weights(cells[0], options)
        inputs = {cell.task.name: _inputs(cell, images, weights, options) for cell in cells}
        yield from (_confirm(cell, inputs[cell.task.name], options) for cell in cells if cell.state == "done")
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
        yield from (_fail(cell, error, options) for cell in cells)
        return
    for cell in cells:
        try:
            yield _measure(cell, prepared, features[cell.protocol.level], inputs[cell.task.name], options, Clock(clock))
        except Exception as error:
            if options.debug:
                raise
            yield _fail(cell, error, options)


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
    notes = [*images.notes, *_size_notes(first_readable(images, options.on_bad_image), pipeline, spec.stem)]
    if backbone.certificate["source"] != "random":  # whose batch norms remember nothing
        with clock("drift"):
            found, _ = input_drift(backbone, pipeline, images, DRIFT_IMAGES)
        notes += [found.warning] if found.warning else []
    return Prepared(images, backbone, pipeline, notes)


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
                    feature_cache(),
                    on_bad_image=options.on_bad_image,
                    fresh=options.force,
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
    backbone.verify()
    reference = cell.backbone.reference.get(cell.task.name)
    skipped = {"trainval": len(trainval.skipped), "test": len(test.skipped)}
    record = {
        **provenance.identity(cell),
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
        "n_skipped": skipped,
        "reference": reference.model_dump() if reference else None,
        "delta": None,
        "off_reference": False,
        "device": device,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "versions": provenance.versions(),
        "seconds": clock.seconds(),
        "features": {"cached": trainval.cached and test.cached, "trainval": trainval.made, "test": test.made},
        "notes": outcome["notes"] + prepared.notes + [f"{n} {part} images skipped" for part, n in skipped.items() if n],
    }
    if reference:
        score = record["metrics"][reference.metric]
        record["delta"], record["off_reference"] = results.reference_delta(score, record["reference"])
    column = results.read_column(options.results, cell.task.name, cell.protocol.name)
    record["status"], record["reasons"] = results.judge(record, column)
    if cell.backbone.source != "random" and not any(results.is_control_of(other, record) for other in column):
        record["notes"].append("no random control on these images: `bench run` one of the random backbones beside it")
    results.write(options.results, record)
    return _close(cell, "measured", str(cell.path))


def _inputs(cell: Cell, images: ImageSet, weights: str, options: Options) -> dict[str, str]:
    """What the number depends on, part by part, so that a stale result can be told from a valid one."""
    backbone, protocol = cell.backbone, cell.protocol
    return {
        "weights": weights,
        "backbone": files.digest(backbone.model_dump(include={"arch", "stem", "format", "checkpoint_key", "pipeline"})),
        "protocol": files.digest([protocol.probe, protocol.level, probes.make(protocol.probe, protocol.settings).chosen()]),
        "images": files.digest([images.fingerprint, images.split_hash, cell.imageset.geometry, cell.imageset.metric]),
        "dtype": str(resolve_dtype(options.dtype)),
    }


def _weights(cell: Cell, options: Options) -> str:
    """The sha256 of the file, or the seed of random weights."""
    path = sources.require(cell.backbone, download=options.download)
    seed = cell.seed if cell.backbone.seed is None else cell.backbone.seed
    return files.sha256_file(path) if path else f"random, seed {seed}"


def _confirm(cell: Cell, inputs: dict[str, str], options: Options) -> Cell:
    """A result that is already there stands only if what it depends on is still the same."""
    try:
        record = results.read(cell.path)
    except RingbenchError as error:
        cell.state, cell.reason = "failed", str(error)
        return cell
    changed = [part for part, value in inputs.items() if record.get("inputs", {}).get(part) != value]
    if options.on_bad_image == "stop" and any(record["n_skipped"].values()):
        changed.append("images, some of them skipped")
    if changed:
        cell.state = "failed"
        cell.reason = f"{cell.path} was measured with other {', '.join(changed)}; --force replaces it, --results DIR keeps both"
    return cell


def _size_notes(image: np.ndarray, pipeline: Pipeline, stem: str) -> list[str]:
    """CASES D5: small images before a stem that shrinks them by four, and what the pipeline did about it."""
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


def _fail(cell: Cell, error: Exception, options: Options) -> Cell:
    """Tell it, and write it down as far as the disk allows, which may be what failed."""
    failure = provenance.failure(cell, options, error)
    if _close(cell, "failed", *failure["reasons"]).state == "failed":
        try:
            results.write(options.results, failure)
        except OSError as full:
            cell.reason += f"; this could not be written down ({full.strerror})"
    return cell
