"""What holds for every command: the options above all of them, and how an error ends one."""

import errno
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from ringbench.errors import RingbenchError, sentence


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
            _stop(error.exit_code, f"error: {sentence(error)}", ctx)
        except KeyboardInterrupt:
            again = "give the same command again (bench pretrain: with --resume) and it goes on from there"
            _stop(130, f"interrupted; what was finished is kept: {again}", ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has enough; typer ends this quietly
                raise
            _stop(1, f"error: {error.filename or 'standard output'}: {error.strerror}", ctx)


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


def _stop(code: int, told: str, ctx: typer.Context) -> NoReturn:
    if ctx.params["debug"]:
        import traceback

        traceback.print_exc()
    typer.echo(told, err=True)
    raise typer.Exit(code)
