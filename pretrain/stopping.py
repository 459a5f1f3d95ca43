"""Reasons to stop before the end, and what is said then."""

import signal
import threading
from types import FrameType

import torch
import torch.distributed as dist

from pretrain.distributed import world
from ringbench.errors import RingbenchError


class Preempted(RingbenchError):
    """The machine was asked for back. Exit code 75 (EX_TEMPFAIL): a scheduler may queue the job again, with --resume."""

    exit_code = 75


class Diverged(RingbenchError):
    """The loss or the weights are no numbers any more."""


class Termination:
    """Whether SIGTERM has come (Slurm's preemption, `kill`), asked between two steps."""

    def __init__(self) -> None:
        self._come = False

    def __enter__(self) -> "Termination":
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._come = True

    def come(self, device: torch.device) -> bool:
        """Whether it has come to any rank; every rank must ask at the same step."""
        if world() == 1:
            return self._come
        flag = torch.tensor(float(self._come), device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)
