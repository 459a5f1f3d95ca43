"""Contenders timed in turn, so that a machine whose speed drifts slows all of them."""

import time
from collections.abc import Callable

import torch


def race(contenders: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """The seconds of each in every round; a first round only warms up."""
    seconds = {name: [] for name in contenders}
    for round in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if round:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def least(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Of each the round that was least disturbed."""
    return {name: min(times) for name, times in seconds.items()}
