"""What a run will do, decided before anything heavy is loaded: which cells are done, to be measured, or unavailable."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from backbones import sources
from backbones.spec import BackboneSpec
from bench import results
from bench.registry import Registry
from imagesets import image_set as imagesets
from imagesets.spec import ImagesetSpec
from transfer.spec import ProtocolSpec, TaskSpec


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
            grouped[cell.backbone.name, weights, cell.imageset.name].append(cell)
        return list(grouped.values())


def make(
    registry: Registry,
    backbones: list[str],
    tasks: list[str],
    seeds: list[int],
    *,
    results_dir: Path,
    data_dir: Path,
    download: bool = False,
    force: bool = False,
) -> Plan:
    """Every backbone x task x seed the patterns name, random controls first so that the others are judged against them.

    Raises UsageError for a pattern that names nothing.
    """
    chosen = sorted(registry.match("backbones", backbones), key=lambda spec: spec.source != "random")
    absent_sets: dict[str, str | None] = {}
    plan = Plan()
    for backbone in chosen:
        absent_weights = None if download and sources.is_url(backbone.source) else sources.missing(backbone)
        for task in registry.match("tasks", tasks):
            imageset, protocol = registry.find("imagesets", task.imageset), registry.find("protocols", task.protocol)
            if imageset.name not in absent_sets:
                absent_sets[imageset.name] = None if download else imagesets.missing(imageset, data_dir)
            for seed in dict.fromkeys(seeds):
                path = results.path_of(results_dir, backbone.name, task.name, protocol.name, seed)
                cell = Cell(backbone, task, protocol, imageset, seed, path)
                if path.exists() and not force:
                    cell.state, cell.reason = "done", str(path)
                elif reason := absent_weights or absent_sets[imageset.name]:
                    cell.state, cell.reason = "unavailable", reason
                plan.cells.append(cell)
    return plan
