"""Commands that make numbers and show them: run, compare, demo, leaderboard."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands.options import RESULTS, AsJson, DataDir, Device, ResultsDir, TaskPatterns


def run(
    ctx: typer.Context,
    backbone: Annotated[list[str], typer.Option(metavar="NAME", help="Name, alias or glob such as 'iring_*'; repeatable.")],
    task: Annotated[list[str], typer.Option(metavar="NAME", help="Name, alias or glob such as '*_knn'; repeatable.")],
    seed: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, max=2**63 - 1, help="Repeatable; 0 where none is given.", show_default=False),
    ] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="auto (float32), float32, bfloat16 or float16.")] = "auto",
    data: DataDir = None,
    results: ResultsDir = RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is already there, from the images on.")] = False,
    on_bad_image: Annotated[
        Literal["stop", "skip"], typer.Option(help="What an unreadable image does. Detectors ask of test images alone.")
    ] = "stop",
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing and can be fetched.")] = False,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10**5, help="Detectors: images of an iteration; the schedule follows.")
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10**7, help="Detectors: a schedule of N, a protocol of its own."),
    ] = None,
    nproc: Annotated[int, typer.Option(metavar="N", min=1, help="Detectors: processes, one for each GPU.")] = 1,
    no_overfit_check: Annotated[
        bool, typer.Option("--no-overfit-check", help="Detectors: do not try on ten images first.")
    ] = False,
) -> None:
    """Measure backbones on tasks. What is already measured is skipped."""
    from bench import registry
    from bench import run as running
    from bench.plan import Options
    from ringbench import places

    options = Options(
        results,
        data or places.data(),
        device,
        dtype,
        on_bad_image,
        download,
        force,
        ctx.obj.debug,
        batch,
        iterations,
        nproc,
        not no_overfit_check,
    )
    code = running.command(
        registry.load(ctx.obj.registry),
        options,
        backbones=backbone,
        tasks=task,
        seeds=seed or [0],
        dry_run=dry_run,
        as_json=as_json,
    )
    raise typer.Exit(code)


def demo() -> None:
    """Two encoders trained and measured on handwritten digits."""
    from bench import demo as demonstration

    raise typer.Exit(demonstration.main())


def compare(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="BACKBONE", help="Name or alias.")],
    second: Annotated[str, typer.Argument(metavar="BACKBONE", help="The one of which the first is subtracted.")],
    task: Annotated[str, typer.Option(metavar="NAME", help="A detection task that both were measured on.")],
    seed: Annotated[int, typer.Option(metavar="N", min=0)] = 0,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Where a task was measured under several.")] = None,
    data: DataDir = None,
    results: ResultsDir = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Two detectors' difference on the same images."""
    from bench import compare as comparing
    from bench import registry
    from ringbench import places

    known, where = registry.load(ctx.obj.registry), data or places.data()
    comparing.command(
        known, task, (first, second), results_dir=results, data=where, protocol=protocol, seed=seed, as_json=as_json
    )


def show_board(ctx: typer.Context, results: ResultsDir = RESULTS, task: TaskPatterns = None) -> None:
    """One table for each protocol."""
    from bench import board

    board.show(results, _with_aliases(ctx, task))


def export_board(
    ctx: typer.Context,
    results: ResultsDir = RESULTS,
    format: Annotated[Literal["csv", "md", "json"], typer.Option()] = "csv",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
    task: TaskPatterns = None,
    wide: Annotated[bool, typer.Option("--wide", help="CSV with a column for each task.")] = False,
) -> None:
    """The same numbers as a file; equal results give equal bytes."""
    from bench import board

    board.write(results, format, out, _with_aliases(ctx, task), wide=wide)


def _with_aliases(ctx: typer.Context, tasks: list[str] | None) -> list[str]:
    from bench import registry

    return registry.load(ctx.obj.registry).canonical("tasks", tasks) if tasks else []
