"""Cells whose probe is a detector: one training for each protocol and seed, however many tasks are told from it."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backbones import loading
from backbones.device import resolve_device, resolve_dtype
from backbones.trunk import FrozenBackbone
from bench import inputs as fitting
from bench.cells import close, confirm, fail, finish, inputs_of, weights_of
from bench.plan import Cell, Options
from bench.results import run_folder
from imagesets import annotated
from imagesets import pipeline as pipelines
from imagesets.annotated import AnnotatedSet
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from ringbench.clock import Clock
from ringbench.errors import RingbenchError, Unavailable, UsageError
from transfer.detection.settings import settings
from transfer.spec import ProtocolSpec

LIBRARIES = ("detectron2", "pycocotools", "ultrafast-pycocotools")  # the last evaluates where it is there


def measure_group(cells: list[Cell], options: Options) -> Iterator[Cell]:
    """Cells of one backbone and one set of annotated images; see bench.runner.execute."""
    clock = Clock()
    try:
        with clock("open"):
            images, weights = annotated.load(cells[0].imageset, options.data), weights_of(cells[0], options)
        inputs = {cell.task.name: inputs_of(cell, images, weights, _meaning(cell.protocol, options), options) for cell in cells}
        yield from (confirm(cell, inputs[cell.task.name], options) for cell in cells if cell.state == "done")
        yield from (fail(cell, error, options) for cell in cells if (error := _unmeasured(cell, images)))
        cells = [cell for cell in cells if cell.state == "run"]
        if not cells:
            return
        _require_whole_test(images, options)
        backbone, pipeline, notes = _prepare(cells[0], images, options, clock)
    except Unavailable as error:
        yield from (close(cell, "unavailable", str(error)) for cell in cells)
        return
    except Exception as error:
        yield from (fail(cell, error, options) for cell in cells)
        return
    runs = defaultdict(list)
    for cell in cells:
        runs[cell.protocol.name, cell.seed].append(cell)
    for together in runs.values():
        timed = Clock(clock)
        try:
            outcome = _measure(together[0], images, backbone, pipeline, options, timed)
        except Exception as error:
            yield from (fail(cell, error, options) for cell in together)
            continue
        for cell in together:
            try:
                yield _finished(cell, outcome, images, backbone, pipeline, notes, inputs[cell.task.name], options, timed)
            except Exception as error:
                yield fail(cell, error, options)


def cost(cells: list[Cell], options: Options) -> str:
    """What cells of one group will take, in words; nothing is computed, but annotations are read."""
    from transfer.detection import config

    images = annotated.load(cells[0].imageset, options.data)
    _require_whole_test(images, options)
    n = {split: len(part.images) for split, part in images.splits.items()}
    schedules = []
    for protocol in {cell.protocol.name: cell.protocol for cell in cells}.values():
        chosen = settings(protocol.settings)
        cfg = config.scaled(config.read(chosen.config), options.batch, chosen.iterations)
        schedules.append(f"{protocol.name}: {config.schedule(cfg)}")
    return f"{'; '.join(schedules)}; of {n['train']:,} images, tested on {n['test']:,}"


def _unmeasured(cell: Cell, images: AnnotatedSet) -> UsageError | None:
    """A headline metric that this protocol will not have, found out before the training."""
    from transfer.detection import measure

    if cell.state != "run" or cell.metric in (known := measure.metrics_of(cell.protocol, images.style)):
        return None
    return UsageError(
        f"task {cell.task.name} is told by {cell.metric}, which is not measured; there are {', '.join(sorted(known))}"
    )


def _require_whole_test(images: AnnotatedSet, options: Options) -> None:
    """Raises RingbenchError where test images cannot be used, unless that was asked for. Training does without such images."""
    lost = images.splits["test"].lost
    if lost and options.on_bad_image == "stop":
        problem, file = lost[0]
        raise RingbenchError(
            f"{len(lost)} test images of image set '{images.spec.name}' cannot be used, such as {file} "
            f"({problem.partition(':')[0]}); repair them, or measure without them: --on-bad-image skip"
        )


def _meaning(protocol: ProtocolSpec, options: Options) -> list:
    from transfer.detection import config

    chosen = settings(protocol.settings)
    return [protocol.probe, protocol.level, chosen.model_dump(), config.read(chosen.config).dump(), options.batch]


def _prepare(cell: Cell, images: AnnotatedSet, options: Options, clock: Clock) -> tuple[FrozenBackbone, Pipeline, list[str]]:
    """The backbone on the CPU, from where its weights go into the detector, and its pipeline, resolved."""
    with clock("load"):
        backbone = loading.load(cell.backbone, seed=cell.seed, download=options.download)
    training = _training_images(images)
    backbone, pipeline = fitting.fit(backbone, pipelines.parse(cell.backbone.pipeline), training, clock, on_bad="skip")
    notes = fitting.warnings(backbone, pipeline, training, clock)
    return backbone, replace(pipeline, geometry=()), notes


def _measure(cell: Cell, images, backbone, pipeline, options: Options, clock: Clock) -> dict:
    from transfer.detection.measure import measure

    with clock("detector"):
        return measure(
            cell.protocol,
            images,
            backbone,
            pipeline,
            seed=cell.seed,
            device=resolve_device(options.device),
            dtype=resolve_dtype(options.dtype),
            folder=run_folder(options.results, cell.backbone.name, cell.imageset.name, cell.protocol.name, cell.seed),
            batch=options.batch,
            nproc=options.nproc,
            overfit_check=options.overfit_check,
            again=options.force,
            label=f"{cell.backbone.name} on {cell.imageset.name}",
        )


def _finished(cell, outcome, images, backbone, pipeline, notes, inputs, options, clock) -> Cell:
    return finish(
        cell,
        outcome,
        options,
        inputs=inputs,
        certificate=backbone.certificate,
        images=images,
        pipeline=str(pipeline),
        skipped={split: len(part.lost) for split, part in images.splits.items()},
        notes=notes,
        libraries=LIBRARIES,
        device=str(resolve_device(options.device)),
        dtype=str(resolve_dtype(options.dtype)).removeprefix("torch."),
        seconds=clock.seconds(),
    )


def _training_images(images: AnnotatedSet) -> ImageSet:
    """The images a detector trains on, as those that count pixels read them."""
    keys = [os.path.relpath(image["file_name"], images.root) for image in images.splits["train"].images]
    none, everything = np.empty(0, np.int64), np.arange(len(keys))
    splits = {"train": everything, "val": none, "test": none}
    return ImageSet(images.spec, images.classes, np.zeros(len(keys), np.int64), None, keys, splits, [], images.root)
