"""How fast the ring closes: from every candidate (0) to the final ring (1).

`progress` is the time since the start of training in units of the annealing time (the Ring paper's authors: 100 epochs), so
1 is the end of annealing; training goes on beyond it.
"""

import math
from collections import deque

from ringbench.errors import UsageError


class Annealing:
    """A schedule: progress >= 0 -> how far the ring has closed, 0 .. 1."""

    def __call__(self, progress: float, metric: float | None = None) -> float:
        raise NotImplementedError

    def state_dict(self) -> dict:
        """What must be saved for a resumed run to go on as an uninterrupted one."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class Constant(Annealing):
    """The final ring from the first step: the paper's lesion "no annealing"."""

    def __call__(self, progress: float, metric: float | None = None) -> float:
        return 1.0


class Linear(Annealing):
    def __call__(self, progress: float, metric: float | None = None) -> float:
        return min(progress, 1.0)


class Step(Annealing):
    """`levels` stairs of equal length; the first is every candidate, the last the final ring."""

    def __init__(self, levels: int = 10) -> None:
        if levels < 2:
            raise UsageError(f"stepwise annealing needs 2 levels or more, found {levels}")
        self.levels = levels

    def __call__(self, progress: float, metric: float | None = None) -> float:
        return min(math.floor(progress * self.levels), self.levels - 1) / (self.levels - 1)


class Exponential(Annealing):
    """1 - exp(-rate * progress), and 1 after the annealing time. The authors' decay of 0.1 per iteration is 0.1 * iterations."""

    def __init__(self, rate: float = 5.0) -> None:
        if rate <= 0:
            raise UsageError(f"the rate of exponential annealing must be positive, found {rate}")
        self.rate = rate

    def __call__(self, progress: float, metric: float | None = None) -> float:
        return 1.0 - math.exp(-self.rate * progress) if progress < 1 else 1.0


class Adaptive(Annealing):
    """Closes by `delta` when the metric is below its mean over the last `window` calls, opens by `delta` when above.

    Lower is better: pass the loss, or minus the accuracy, averaged over the ranks so that all of them take the same step.
    """

    def __init__(self, delta: float = 0.01, window: int = 10) -> None:
        if not 0 < delta <= 1 or window < 1:
            raise UsageError(f"adaptive annealing needs 0 < delta <= 1 and window >= 1, found {delta} and {window}")
        self.delta = delta
        self.closed = 0.0
        self.recent: deque[float] = deque(maxlen=window)

    def __call__(self, progress: float, metric: float | None = None) -> float:
        if metric is None:
            raise UsageError("adaptive annealing needs a metric at each step, such as the last loss")
        metric = float(metric)
        mean = sum(self.recent) / len(self.recent) if self.recent else metric
        step = self.delta * ((metric < mean) - (metric > mean))
        self.closed = min(max(self.closed + step, 0.0), 1.0)
        self.recent.append(metric)
        return self.closed

    def state_dict(self) -> dict:
        return {"closed": self.closed, "recent": list(self.recent)}

    def load_state_dict(self, state: dict) -> None:
        self.closed = state["closed"]
        self.recent.clear()
        self.recent.extend(state["recent"])
