"""`bench run`: the plan shown or carried out, each result told as it comes, and an exit code that says how it went."""

import json
from collections import Counter
from pathlib import Path

from rich.markup import escape

from bench import plan as planning
from bench import results
from bench.plan import Cell, Plan
from bench.registry import Registry
from ringbench import places

EXIT_CODES = {"failed": 1, "unavailable": 3}  # the first that occurs, in this order


def command(
    registry: Registry,
    *,
    backbones: list[str],
    tasks: list[str],
    seeds: list[int],
    device: str = "auto",
    dtype: str = "auto",
    data: Path | None = None,
    results_dir: Path = Path("results"),
    dry_run: bool = False,
    as_json: bool = False,
    force: bool = False,
    on_bad_image: str = "stop",
    download: bool = False,
    debug: bool = False,
) -> int:
    """Returns the exit code: 0 all done, 1 a run failed, 3 something was unavailable and nothing failed."""
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    data_dir = data or places.data()
    plan = planning.make(
        registry, backbones, tasks, seeds, results_dir=results_dir, data_dir=data_dir, download=download, force=force
    )
    ready = Plan([cell for cell in plan.cells if cell.state != "unavailable"])
    told = [cell for cell in plan.cells if cell.state == "unavailable"]
    for cell in told:
        console.print(_line(cell))
    if ready.cells:  # what is missing is told at once, before torch is loaded
        from bench import runner

        options = runner.Options(results_dir, data_dir, device, dtype, on_bad_image, download, debug)
        for cell in ready.cells if dry_run else runner.execute(ready, options):
            told.append(cell)
            if dry_run and cell.state == "run":
                cell.reason = runner.cost(cell, options)
            console.print(_line(cell))
    counts = Counter(cell.state for cell in told)
    console.print(f"{', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}; results in {results_dir}")
    if as_json:
        print(json.dumps([_as_json(cell) for cell in told], indent=2, sort_keys=True))
    return next((code for state, code in EXIT_CODES.items() if counts[state]), 0)


def _line(cell: Cell) -> str:
    if cell.state != "measured":
        colour = {"failed": "red", "unavailable": "yellow"}.get(cell.state, "dim")
        return f"[{colour}]{cell.state:<12}[/{colour}]{cell.label}: {escape(cell.reason)}"
    record = results.read(cell.path)
    score, seconds = record["metrics"][record["metric"]], sum(record["seconds"].values())
    interval = escape(f"[{score['ci_low']:.2f}, {score['ci_high']:.2f}]")
    line = f"{record['status']:<12}{cell.label}: {record['metric']} {score['value']:.2f} {interval}"
    remarks = record["reasons"] + record["notes"]
    if record["delta"] is not None:
        remarks.insert(0, f"{record['delta']:+.2f} from the reference{', off' if record['off_reference'] else ''}")
    return f"{line}  n {score['n']}, {seconds:.1f} s" + (f"  [yellow]{escape('; '.join(remarks))}[/yellow]" if remarks else "")


def _as_json(cell: Cell) -> dict:
    told = {"backbone": cell.backbone.name, "task": cell.task.name, "seed": cell.seed, "state": cell.state, "reason": cell.reason}
    return told | ({"result": results.read(cell.path)} if cell.state in {"measured", "done"} else {})
