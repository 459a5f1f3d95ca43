"""From two names to numbers: plan, then for each backbone and image set one pass of the images, then a probe for each task."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backbones import loading
from backbones.device import resolve_device, resolve_dtype
from backbones.trunk import FrozenBackbone
from bench import inputs as fitting
from bench.cells import close, confirm, fail, finish, inputs_of, weights_of
from bench.costs import feature_cache, first_readable
from bench.plan import Cell, Options, Plan
from imagesets import image_set as imagesets
from imagesets import pipeline as pipelines
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from ringbench import progress
from ringbench.clock import Clock
from ringbench.errors import Unavailable
from transfer import probes
from transfer.features import Features, extract
from transfer.protocols import measure
from transfer.spec import DETECTION, ProtocolSpec


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
        if cells[0].protocol.probe == DETECTION:
            from bench import detection

            yield from detection.measure_group(cells, options)
        else:
            yield from _measure_group(cells, options)


def _measure_group(cells: list[Cell], options: Options) -> Iterator[Cell]:
    clock = Clock()
    try:
        with clock("open"):
            images = imagesets.load(cells[0].imageset, options.data, download=options.download)
            images.require_measurable()
            weights = weights_of(cells[0], options)
        inputs = {cell.task.name: inputs_of(cell, images, weights, _meaning(cell.protocol), options) for cell in cells}
        yield from (confirm(cell, inputs[cell.task.name], options) for cell in cells if cell.state == "done")
        cells = [cell for cell in cells if cell.state == "run"]
        if not cells:
            return
        prepared = _prepare(cells[0], images, options, clock)
        features = _extract(cells, prepared, options, clock)
    except Unavailable as error:
        yield from (close(cell, "unavailable", str(error)) for cell in cells)
        return
    except Exception as error:
        yield from (fail(cell, error, options) for cell in cells)
        return
    for cell in cells:
        try:
            yield _measure(cell, prepared, features[cell.protocol.level], inputs[cell.task.name], options, Clock(clock))
        except Exception as error:
            yield fail(cell, error, options)


def _meaning(protocol: ProtocolSpec) -> list:
    return [protocol.probe, protocol.level, probes.make(protocol.probe, protocol.settings).chosen()]


def _prepare(cell: Cell, images: ImageSet, options: Options, clock: Clock) -> Prepared:
    """Load the backbone and fill in what its pipeline takes from the image set."""
    spec, device, dtype = cell.backbone, resolve_device(options.device), resolve_dtype(options.dtype)
    with clock("load"):
        backbone = loading.load(spec, seed=cell.seed, device=device, dtype=dtype, download=options.download)
    pipeline = pipelines.parse(spec.pipeline).with_geometry(cell.imageset.geometry)
    backbone, pipeline = fitting.fit(backbone, pipeline, images, clock, on_bad=options.on_bad_image)
    notes = [*images.notes, *_size_notes(first_readable(images, options.on_bad_image), pipeline, spec.stem)]
    return Prepared(images, backbone, pipeline, notes + fitting.warnings(backbone, pipeline, images, clock))


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
    return finish(
        cell,
        outcome,
        options,
        inputs=inputs,
        certificate=backbone.certificate,
        images=images,
        pipeline=str(prepared.pipeline),
        skipped={"trainval": len(trainval.skipped), "test": len(test.skipped)},
        notes=prepared.notes,
        device=device,
        dtype=str(backbone.dtype).removeprefix("torch."),
        seconds=clock.seconds(),
        features={"cached": trainval.cached and test.cached, "trainval": trainval.made, "test": test.made},
    )


def _size_notes(image: np.ndarray, pipeline: Pipeline, stem: str) -> list[str]:
    """CASES D5: small images before a stem that shrinks them by four, and what the pipeline did about it."""
    native, used = min(image.shape[:2]), min(pipeline.prepare(image).shape[:2])
    notes = [f"images are enlarged, the first from {native} to {used} px"] if used > 1.5 * native else []
    if used < 64 and stem == "imagenet":
        notes.append(f"an input of {used} px leaves a {-(-used // 32)} px res5 map behind the imagenet stem")
    return notes
