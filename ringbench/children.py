"""Processes that share one piece of work: their errors are told by the one that started them, with torch.multiprocessing."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ringbench.errors import RingbenchError, Unavailable, UsageError, raised
from ringbench.stopping import Diverged, Preempted

TOLD = {kind.__name__: kind for kind in (RingbenchError, UsageError, Unavailable, Diverged, Preempted)}


@contextmanager
def working() -> Iterator[None]:
    """Around a call that starts processes and waits for them: raises the first error of any of them as if it were of this one,
    RingbenchError where it was none of ours or a process was killed. SIGTERM to this process is SIGTERM to them."""
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

    try:
        with _passed_on(), _quiet():
            yield
    except ProcessRaisedException as error:
        name, text = raised(str(error))
        kind = TOLD.get(name.rpartition(".")[2])
        if kind is None:
            raise RingbenchError(f"process {error.error_index}: {name}: {text.splitlines()[0]} (--debug shows where)") from error
        raise kind(text) from error
    except ProcessExitedException as error:
        if error.signal_name == "SIGTERM":
            raise Preempted("stopped by SIGTERM before or after training; the same command goes on") from error
        how = f"ended with exit code {error.exit_code} and did not say why"
        if error.signal_name:
            how = f"was killed by {error.signal_name}" + "; was there too little memory?" * (error.signal_name == "SIGKILL")
        raise RingbenchError(f"process {error.error_index} {how}") from error


@contextmanager
def _passed_on() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in multiprocessing.active_children()])
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Libraries' notices to their authors are not printed once by every process, nor that the others end where one has ended."""
    logger = logging.getLogger("torch.multiprocessing.spawn")
    level, before = logger.level, os.environ.get("PYTHONWARNINGS")
    logger.setLevel(logging.ERROR)
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop("PYTHONWARNINGS") if before is None else os.environ.update(PYTHONWARNINGS=before)
