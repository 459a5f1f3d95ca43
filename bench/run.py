"""`bench run`: the plan shown or carried out, each result told as it comes, and an exit code that says how it went."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from bench import plan as planning
from bench import results
from bench.plan import Cell, Options, Plan
from bench.registry import Registry
from ringbench.errors import RingbenchError
from transfer.spec import DETECTION

EXIT_CODES = {"failed": 1, "unavailable": 3}  # the first that occurs, in this order


def command(
    registry: Registry,
    options: Options,
    *,
    backbones: list[str],
    tasks: list[str],
    seeds: list[int],
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Returns the exit code: 0 all done, 1 a run failed, 3 something was unavailable and nothing failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    if dry_run:
        options = replace(options, download=False)
    plan = planning.make(registry, backbones, tasks, seeds, options)
    told = []
    for cell in _costed(plan, options) if dry_run else _carried_out(plan, options):
        told.append(cell)
        console.print(_line(cell))
        console.file.flush()  # a log file is read while the run goes on
    counts = Counter(cell.state for cell in told)
    console.print(
        f"{', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}; results in {escape(str(options.results))}"
    )
    if as_json:
        print(json.dumps([_as_json(cell) for cell in told], indent=2, sort_keys=True))
    return next((code for state, code in EXIT_CODES.items() if counts[state]), 0)


def _carried_out(plan: Plan, options: Options) -> Iterator[Cell]:
    """What is missing is told at once, before torch is loaded."""
    yield from (cell for cell in plan.cells if cell.state == "unavailable")
    ready = Plan([cell for cell in plan.cells if cell.state != "unavailable"])
    if ready.cells:
        from bench import runner

        yield from runner.execute(ready, options)


def _costed(plan: Plan, options: Options) -> Iterator[Cell]:
    """The plan, and in the first cell of those that share a pass over the images what the pass takes."""
    for cells in plan.groups():
        to_run = [cell for cell in cells if cell.state == "run"]
        if to_run:
            from bench import costs, detection

            cost = detection.cost if to_run[0].protocol.probe == DETECTION else costs.cost
            try:
                reason = cost(to_run, options)
            except RingbenchError as error:
                reason = str(error)
            for cell in to_run:
                cell.reason = reason if cell is to_run[0] else "from the same pass"
        yield from cells


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
