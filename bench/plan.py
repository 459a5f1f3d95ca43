"""What a run will do, decided before anything heavy is loaded: which cells are done, to be measured, or unavailable."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from backbones import sources
from backbones.spec import BackboneSpec
from bench import results, setup_detection
from bench.registry import Registry
from imagesets import providers as imagesets
from imagesets.spec import ImagesetSpec
from ringbench.errors import Unavailable
from transfer.spec import DETECTION, ProtocolSpec, TaskSpec


@dataclass(frozen=True)
class Options:
    """How to run, whatever is run: what `bench run` was given beside names."""

    results: Path
    data: Path
    device: str = "auto"
    dtype: str = "auto"
    on_bad_image: str = "stop"
    download: bool = False
    force: bool = False
    debug: bool = False
    batch: int | None = None  # the last four are of detectors
    iterations: int | None = None
    nproc: int = 1
    overfit_check: bool = True


@dataclass
class Cell:
    """One number to be had: a backbone measured on a task with a seed. `state` is run, done or unavailable."""

    backbone: BackboneSpec
    task: TaskSpec
    protocol: ProtocolSpec
    imageset: ImagesetSpec
    seed: int
    path: Path
    state: str = "run"
    reason: str = ""

    @property
    def metric(self) -> str:
        return self.task.metric or self.imageset.metric

    @property
    def label(self) -> str:
        return f"{self.backbone.name} {self.task.name} seed {self.seed}"


@dataclass
class Plan:
    cells: list[Cell] = field(default_factory=list)

    def groups(self) -> list[list[Cell]]:
        """Cells that share one pass of images through one set of weights. Random weights follow the seed; others do not."""
        grouped = defaultdict(list)
        for cell in self.cells:
            weights = cell.seed if cell.backbone.source == "random" else None
            detector = cell.protocol.probe == DETECTION
            grouped[cell.backbone.name, weights, cell.imageset.name, detector].append(cell)
        return list(grouped.values())


def make(registry: Registry, backbones: list[str], tasks: list[str], seeds: list[int], options: Options) -> Plan:
    """Every backbone x task x seed the patterns name, random controls first so that the others are judged against them.

    With `options.download` missing weights are fetched now: a dead link is told before anything heavy is loaded.
    Raises UsageError for a pattern that names nothing.
    """
    chosen = sorted(registry.match("backbones", backbones), key=lambda spec: spec.source != "random")
    wanted, plan = registry.match("tasks", tasks), Plan()
    absent_sets: dict[str, str | None] = {}
    for backbone in chosen:
        absent_weights = _fetched(backbone) if options.download else sources.missing(backbone)
        for task in wanted:
            imageset, protocol = registry.find("imagesets", task.imageset), registry.find("protocols", task.protocol)
            detector = protocol.probe == DETECTION
            if detector and options.iterations:
                protocol = shortened(protocol, options.iterations)
            if imageset.name not in absent_sets:
                absent_sets[imageset.name] = None if options.download else imagesets.missing(imageset, options.data)
            for seed in dict.fromkeys(seeds):
                path = results.path_of(options.results, backbone.name, task.name, protocol.name, seed)
                cell = Cell(backbone, task, protocol, imageset, seed, path)
                if path.exists() and not options.force:
                    cell.state, cell.reason = "done", str(path)
                elif reason := absent_weights or absent_sets[imageset.name] or (detector and setup_detection.missing()):
                    cell.state, cell.reason = "unavailable", reason
                plan.cells.append(cell)
    return plan


def shortened(protocol: ProtocolSpec, iterations: int) -> ProtocolSpec:
    """The same detector trained for so many iterations: another protocol, with another name, since its numbers are others."""
    name, _, version = protocol.name.rpartition("@")
    changed = {"name": f"{name}+{iterations}it@{version}", "settings": protocol.settings | {"iterations": iterations}}
    return protocol.model_copy(update=changed)


def _fetched(backbone: BackboneSpec) -> str | None:
    try:
        sources.require(backbone, download=True)
    except Unavailable as error:
        return str(error)
    return None
