"""The `bench` command: options in, one call out. What a command does is written elsewhere and imported when it is asked for."""

import os
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from ringbench.errors import RingbenchError


class Globals(NamedTuple):
    """`ctx.obj`: the options that stand above every command."""

    registry: Path | None
    debug: bool


class Bench(TyperGroup):
    """Takes the global options anywhere on the line, and turns what stops a command into one sentence and an exit code."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _globals_first(args))

    def invoke(self, ctx: typer.Context):
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # a reader that has gone is noticed here, where it is handled, not at exit
        except RingbenchError as error:
            _stop(error.exit_code, f"error: {error}", ctx)
        except KeyboardInterrupt:
            _stop(130, "interrupted; what was finished is kept: give the same command again and it goes on from there", ctx)
        except OSError as error:
            if error.filename is None:  # a closed pipe, for one, which typer ends quietly
                raise
            _stop(1, f"error: {error.filename}: {error.strerror}", ctx)


def _globals_first(args: Iterable[str]) -> list[str]:
    first, rest, words = [], [], iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in {"--debug", "--offline"} or word.startswith("--registry="):
            first.append(word)
        elif word == "--registry":
            first += [word, *islice(words, 1)]
        else:
            rest.append(word)
    return first + rest


def _stop(code: int, sentence: str, ctx: typer.Context) -> NoReturn:
    if ctx.params["debug"]:
        import traceback

        traceback.print_exc()
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


app = typer.Typer(
    cls=Bench,
    help="How well does a frozen encoder transfer? Checkpoints in, comparable numbers out.",
    epilog="--registry, --offline and --debug may also follow the command. Exit codes: 0 all done, 1 a run failed, "
    "2 usage or registry error, 3 something is unavailable and nothing failed, 75 preempted: give the command again.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
leaderboard = typer.Typer(help="Show or export what the result files say.", no_args_is_help=True)
app.add_typer(leaderboard, name="leaderboard")
registered = typer.Typer(help="Look after the entries of the registry.", no_args_is_help=True)
app.add_typer(registered, name="registry")

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable on stdout, everything human on stderr.")]
ResultsDir = Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the result files.")]
TaskPatterns = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; name or glob, repeatable.")
]
ArchName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as resnet50. Default: found in the file.")]
StemName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as cifar_pad2. Default: the format's.")]
FormatName = Annotated[str, typer.Option(metavar="NAME", help="Layout of the file.")]
CheckpointKey = Annotated[str | None, typer.Option(metavar="K", help="Where in the file the weights are.")]
PipelineText = Annotated[str | None, typer.Option(metavar="P", help="Preprocessing. Default: the format's.")]
RESULTS = Path("results")


@app.callback()
def options(
    ctx: typer.Context,
    registry: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own registry, in place of ./registry.yaml or $BENCH_HOME/registry.yaml."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network, as BENCH_OFFLINE=1 does.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    if offline:
        os.environ["BENCH_OFFLINE"] = "1"  # for the processes of workers too
    ctx.obj = Globals(registry, debug)


@app.command("list")
def list_entries(
    ctx: typer.Context,
    section: Annotated[
        Literal["backbones", "imagesets", "tasks", "protocols", "recipes"] | None, typer.Argument(show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What there is, by name."""
    from bench import listing, recipe_pages, registry

    if section == "recipes":
        return recipe_pages.show_all(as_json)
    known = registry.load(ctx.obj.registry)
    sections = [section] if section else list(registry.SECTIONS)
    print(listing.as_json(known, sections), end="") if as_json else listing.show_sections(known, sections)


@app.command()
def show(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="A name or alias from any section.")]
) -> None:
    """Everything about one name from any section."""
    from bench import listing, recipe_pages, registry
    from pretrain import recipe as recipes

    known = registry.load(ctx.obj.registry)
    trainable = name in recipes.words()
    if not trainable or known.knows(name):
        listing.show_entry(known, name)
    if trainable:
        recipe_pages.show(name)


@app.command()
def validate(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[REGISTRY]", help="Default: the one that is in use.")] = None,
) -> None:
    """Show every problem of the registry, with file and line."""
    from bench import registry

    overlay = file or ctx.obj.registry or registry.overlay()
    known, problems = registry.check(overlay)
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(2)
    counts = ", ".join(f"{len(getattr(known, section))} {section}" for section in registry.SECTIONS)
    print(
        f"no problems in {' and '.join(str(path) for path in (registry.PACKAGED, registry.ENCODERS, overlay) if path)}: {counts}"
    )


@app.command()
def run(
    ctx: typer.Context,
    backbone: Annotated[list[str], typer.Option(metavar="NAME", help="Name, alias or glob such as 'iring_*'; repeatable.")],
    task: Annotated[list[str], typer.Option(metavar="NAME", help="Name, alias or glob such as '*_knn'; repeatable.")],
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Repeatable; 0 where none is given.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="auto (float32), float32, bfloat16 or float16.")] = "auto",
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the image sets, in place of $BENCH_DATA.")] = None,
    results: ResultsDir = RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is already there.")] = False,
    on_bad_image: Annotated[Literal["stop", "skip"], typer.Option(help="What an unreadable image does.")] = "stop",
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing and can be fetched.")] = False,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Detectors: images of an iteration; the schedule follows.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Detectors: a schedule shortened to N, a protocol of its own.")
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

    code = running.command(
        registry.load(ctx.obj.registry),
        Options(
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
        ),
        backbones=backbone,
        tasks=task,
        seeds=seed or [0],
        dry_run=dry_run,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def register(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name it shall have.")],
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="The file with the weights.", exists=True, dir_okay=False)
    ],
    arch: ArchName = None,
    stem: StemName = None,
    format: FormatName = "auto",
    checkpoint_key: CheckpointKey = None,
    pipeline: PipelineText = None,
    imageset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tell whether this set looks like the inputs of training.")
    ] = None,
    alias: Annotated[list[str] | None, typer.Option(metavar="A", help="Another name; repeatable.")] = None,
) -> None:
    """Write a checkpoint into your registry, once it is read."""
    from bench import editing

    editing.register(ctx.obj.registry, name, checkpoint, arch, format, checkpoint_key, pipeline, alias or [], stem, imageset)


@app.command()
def convert(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="The file with the weights.", exists=True, dir_okay=False)
    ],
    to: Annotated[Literal["safetensors", "detectron2", "torchvision"], typer.Option(help="Who shall read it.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="What to write; a card of the same name in .json goes beside it.")],
    arch: ArchName = None,
    stem: StemName = None,
    format: FormatName = "auto",
    checkpoint_key: CheckpointKey = None,
    pipeline: PipelineText = None,
) -> None:
    """Write the trunk of a checkpoint for others to read."""
    from bench import convert as converting

    converting.convert(checkpoint, to, out, arch, stem, format, checkpoint_key, pipeline)


@registered.command()
def verify(
    ctx: typer.Context,
    name: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Backbones, names or globs. Default: all.")
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Ask every link whether it still works.")] = False,
) -> None:
    """Hash the files of backbones again, and tell what has changed or gone."""
    from bench import registry
    from bench import verify as verifying

    raise typer.Exit(verifying.command(registry.load(ctx.obj.registry), name or ["*"], online=online))


@app.command()
def pretrain(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name of `bench list recipes`.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value, such as epochs=20; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the image sets, in place of $BENCH_DATA.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkpoints and log. Default: runs/RECIPE.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would cost and stop.")] = False,
    nproc: Annotated[int, typer.Option(metavar="N", min=1, help="Processes, such as one for each GPU.")] = 1,
) -> None:
    """Train an encoder and register it. SIGTERM leaves a checkpoint and exit code 75: queue it again with --resume."""
    from bench import pretrain as training

    code = training.command(
        ctx.obj.registry,
        recipe,
        set_ or [],
        device=device,
        data=data,
        out=out,
        resume=resume,
        dry_run=dry_run,
        nproc=nproc,
    )
    raise typer.Exit(code)


@leaderboard.command("show")
def show_board(results: ResultsDir = RESULTS, task: TaskPatterns = None) -> None:
    """One table for each protocol."""
    from bench import board

    board.show(results, task or [])


@leaderboard.command("export")
def export_board(
    results: ResultsDir = RESULTS,
    format: Annotated[Literal["csv", "md", "json"], typer.Option()] = "csv",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
    task: TaskPatterns = None,
    wide: Annotated[bool, typer.Option("--wide", help="CSV with a column for each task.")] = False,
) -> None:
    """The same numbers as a file; equal results give equal bytes."""
    from bench import board

    board.write(results, format, out, task or [], wide=wide)


@app.command()
def doctor(ctx: typer.Context) -> None:
    """What works on this machine, and exactly what is missing."""
    from bench import doctor as examination

    examination.main(ctx.obj.registry)


@app.command()
def setup(
    part: Annotated[Literal["detection"], typer.Argument(help="What to make ready.")],
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Build the official source, in minutes, in place of a repacked wheel.")
    ] = False,
) -> None:
    """Install what pip cannot install by name: Detectron2."""
    from bench import setup_detection

    setup_detection.command(from_source=from_source)


@app.command()
def demo() -> None:
    """Two untrained networks on real handwritten digits."""
    from bench import demo as demonstration

    raise typer.Exit(demonstration.main())


def main() -> None:
    try:
        app(prog_name="bench")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sentence = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"internal error: {sentence}; rerun with --debug for the traceback", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
