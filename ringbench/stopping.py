"""Reasons to stop a long run before its end, and what is said then."""

import signal
import threading
from types import FrameType

from ringbench.errors import RingbenchError


class Preempted(RingbenchError):
    """The machine was asked for back. Exit code 75 (EX_TEMPFAIL): a scheduler may queue the job again, to go on."""

    exit_code = 75


class Diverged(RingbenchError):
    """The loss or the weights are no numbers any more."""


class Termination:
    """Whether SIGTERM has come (Slurm's preemption, `kill`), asked between two steps."""

    def __init__(self) -> None:
        self.come = False

    def __enter__(self) -> "Termination":
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.come = True
