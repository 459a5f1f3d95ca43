"""`bench pretrain`: a recipe and an image set become an encoder with a name."""

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from bench import registry, streams, trained
from bench.registry import Registry
from imagesets.spec import ImagesetSpec
from pretrain import recipe as recipes
from pretrain.spec import Recipe
from ringbench import files, places, progress
from ringbench.errors import UsageError
from ringbench.stopping import Preempted, Termination


class Job(NamedTuple):
    """All that a rank needs to know."""

    recipe: Recipe
    imageset: ImagesetSpec
    data: Path
    out: Path
    device: str
    resume: bool
    force: bool


def command(
    extra: Path | None,
    word: str,
    changes: list[str],
    *,
    device: str = "auto",
    data: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
    nproc: int = 1,
) -> int:
    """Returns the exit code. Raises UsageError or Unavailable before anything is trained."""
    recipe = recipes.load(word, changes)
    known = registry.load(extra)
    trained.check_name(known, recipe, word)
    if not force:
        trained.check_file(recipe)
    trained.check_entry(extra, known, recipe, force)
    imageset, out = _imageset(known, recipe, data), out or Path("runs") / recipe.name
    job = Job(recipe, imageset, data or places.data(), out, device, resume, force)
    if dry_run:
        return _show_cost(job)
    from pretrain import processes

    if nproc > 1:
        processes.start(nproc, _rank, job)
    else:
        _train(job)
    if processes.is_first():
        trained.register(extra, recipe, force)
        if f"{recipe.imageset}_knn" in known.words("tasks"):
            print(f"Try it: bench run --backbone {recipe.name} --task '{recipe.imageset}_knn'")
    return 0


def _imageset(known: Registry, recipe: Recipe, data: Path | None) -> ImagesetSpec:
    if recipe.imageset != "folder":
        return known.find("imagesets", recipe.imageset)
    if data is None:
        raise UsageError(f"{recipe.name} trains on a folder of yours: name it with --data DIR")
    return ImagesetSpec(name="folder", title=str(data), provider="folder", root=str(data.absolute()))


def _rank(job: Job) -> None:
    """A process of its own, whose streams are too."""
    streams.prepare()
    _train(job)


def _train(job: Job) -> None:
    from backbones.device import resolve_device
    from pretrain import export, processes
    from pretrain.distributed import rank

    with processes.group(resolve_device(job.device)) as device:
        first = rank() == 0
        alone = files.exclusive(job.out) if first else nullcontext()
        bar = progress.bar(job.recipe.name) if first else nullcontext(lambda done, total: None)
        with alone, bar as update:
            with Termination() as asked:
                trainer = _trainer(job, device, update)
            if asked.come:
                raise Preempted("stopped by SIGTERM before the first step; the same command, with --resume, begins it")
            if first:
                print(_summary(job, trainer), flush=True)
            trainer.run()
        if first:
            path = trained.path_of(job.recipe)
            _check(job, trainer.images)  # another may have come meanwhile
            export.write(trainer, path)
            print(f"wrote {path} and its card {path.with_suffix('.json').name}")


def _trainer(job: Job, device, update):
    from imagesets import image_set
    from pretrain.distributed import rank
    from pretrain.trainer import Surroundings, Trainer

    images = image_set.load(job.imageset, job.data)
    _check(job, images)
    around = Surroundings(job.out, device, job.resume, progress=update)
    if rank() == 0:
        print(f"{job.recipe.name}: {job.recipe.title}", flush=True)
    return Trainer(job.recipe, images, *_colours(job.recipe, images), around)


def _check(job: Job, images) -> None:
    if not job.force:
        trained.check_file(job.recipe, (images.fingerprint, images.split_hash))


def _colours(recipe: Recipe, images):
    """Mean and standard deviation of R, G and B; what the first rank finds out is cached for the others."""
    from torch import distributed as dist

    from imagesets import pipeline
    from imagesets.statistics import channel_statistics
    from pretrain.distributed import rank, world

    if recipe.normalize != "dataset":
        return pipeline.NAMED[recipe.normalize]
    if rank() == 0:
        channel_statistics(images)
    if world() > 1:
        dist.barrier()
    return channel_statistics(images)


def _summary(job: Job, trainer) -> str:
    from pretrain import cost
    from pretrain.distributed import world

    begun = f"from step {trainer.step:,} on" if trainer.step else "from the start"
    return (
        f"  images         {len(trainer.trained):,} of {job.imageset.name}, {trainer.data.how}\n"
        f"  steps          {job.recipe.epochs * trainer.sampler.steps:,}, {begun}, on {world()} x {trainer.around.device}\n"
        f"  learning rate  {cost.rule(job.recipe)}\n"
        f"  run            {job.out}: checkpoints, log.jsonl"
    )


def _show_cost(job: Job) -> int:
    from backbones.device import resolve_device
    from imagesets import image_set
    from pretrain import cost
    from pretrain.data import stored_size

    images = image_set.load(job.imageset, job.data)
    n = len(images.splits["train"] if job.recipe.objective == "supervised" else images.trainval)
    size = stored_size(images, job.recipe.resize)
    print(f"{job.recipe.name}: {job.recipe.title}")
    for label, value in cost.estimate(job.recipe, n, len(images.classes), size, resolve_device(job.device)).items():
        print(f"  {label:<14} {value}")
    return 0
