"""How long each stage of a run took."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds spent in each named stage, `before` included."""

    def __init__(self, before: "Clock | None" = None) -> None:
        self._spent: Counter = Counter(before._spent if before else ())

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[stage] += time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        return {stage: round(spent, 3) for stage, spent in self._spent.items()}
