"""The `bench` command on one screen. Its commands read their options in bench/commands and import what they do when asked."""

import os
import sys

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for them is to read every installed package
# Threads that wait soon sleep: on a shared machine spinning ones steal each other's time.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from pathlib import Path
from typing import Annotated

import typer

from bench import memory, streams
from bench.commands import encoders, entries, numbers, pictures
from bench.commands.group import Bench, Globals
from ringbench.errors import sentence

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
registry = typer.Typer(help="Look after the entries of the registry.", no_args_is_help=True)
COMPUTING = {"run", "pretrain", "demo"}  # commands that work in huge pages

app.command("list")(entries.list_entries)
app.command()(entries.show)
app.command()(entries.validate)
app.command()(numbers.run)
app.command()(numbers.compare)
app.command()(encoders.register)
app.command()(encoders.convert)
app.command()(encoders.pretrain)
app.command("show-predictions")(pictures.show_predictions)
app.command()(entries.doctor)
app.command()(entries.setup)
app.command()(numbers.demo)
app.add_typer(leaderboard, name="leaderboard")
leaderboard.command("show")(numbers.show_board)
leaderboard.command("export")(numbers.export_board)
app.add_typer(registry, name="registry")
registry.command()(entries.verify)


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


def main() -> None:
    if COMPUTING & set(sys.argv[1:]):
        memory.prefer_huge_pages()
    streams.prepare()
    try:
        app(prog_name="bench")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        print(f"error: {sentence(error)}", file=sys.stderr)
        sys.exit(1)
    finally:
        streams.finish()


if __name__ == "__main__":
    main()
