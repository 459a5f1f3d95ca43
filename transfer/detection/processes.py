"""A function run by several processes of Detectron2's launcher, and their errors told by this one."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from detectron2.engine import launch as launched
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from ringbench.errors import RingbenchError, Unavailable, UsageError
from ringbench.stopping import Diverged, Preempted

TOLD = {kind.__name__: kind for kind in (RingbenchError, UsageError, Unavailable, Diverged, Preempted)}


def launch(function: Callable[..., None], number: int, *arguments: object) -> None:
    """Run `function(*arguments)` in `number` processes that share the work, or here if that is 1.

    Raises the first error of any of them, RingbenchError where it was none of ours or a process was killed. SIGTERM is passed on.
    """
    try:
        with _together() if number > 1 else nullcontext():
            launched(function, number, dist_url="auto", args=arguments)
    except ProcessRaisedException as error:
        name, _, text = str(error).strip().splitlines()[-1].partition(": ")
        kind = TOLD.get(name.rpartition(".")[2])
        raise (kind(text) if kind else RingbenchError(f"process {error.error_index}: {name}: {text}")) from error
    except ProcessExitedException as error:
        if error.signal_name == "SIGTERM":
            raise Preempted("stopped by SIGTERM before or after training; the same command goes on") from error
        how = f"was killed by {error.signal_name}" if error.signal_name else f"ended with exit code {error.exit_code}"
        raise RingbenchError(f"process {error.error_index} of {number} {how}; was there too little memory?") from error


@contextmanager
def _together() -> Iterator[None]:
    """SIGTERM to this process is SIGTERM to its children, which leave a checkpoint; and what this package does not print they do
    not print either."""
    before = signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in multiprocessing.active_children()])
    quiet = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        os.environ.pop("PYTHONWARNINGS") if quiet is None else os.environ.update(PYTHONWARNINGS=quiet)
