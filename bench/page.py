"""Where a command prints for a person to read."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 1000  # columns where no terminal reads along: every entry keeps to one line


@contextmanager
def page() -> Iterator[Console]:
    """A console to print on. Off a terminal it neither wraps nor colours, and leaves no spaces at the ends of lines."""
    plain = {"highlight": False, "markup": False, "emoji": False}  # what people wrote is shown as they wrote it
    out = Console(**plain)
    if out.is_terminal:
        yield out
        return
    out = Console(**plain, width=WIDE)
    with out.capture() as captured:
        yield out
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table(title: str) -> Table:
    """One to be filled, with its title above on the left."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
