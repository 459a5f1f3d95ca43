"""Progress bars with time left, on a terminal only, and only for what takes longer than two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0


@contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield `update(done, total)`; what it draws on stderr is gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left")
    drawing = Progress(*columns, console=Console(stderr=True), transient=True)
    task = drawing.add_task(label, total=None, visible=False)
    started = time.monotonic()

    def update(done: int, total: int) -> None:
        drawing.update(task, completed=done, total=total)
        if not drawing.live.is_started and time.monotonic() - started > PATIENCE_S:
            drawing.update(task, visible=True)
            drawing.start()

    try:
        yield update
    finally:
        drawing.stop()
