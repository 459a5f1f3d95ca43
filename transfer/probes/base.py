"""What every probe has: validated settings, a seed, a device; fit, scores, predict; and a report of what was chosen and how."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from ringbench.errors import UsageError
from transfer.probes.rows import blocks

Labelled = tuple[np.ndarray, np.ndarray]  # features, labels
STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@dataclass(config=STRICT)
class Probe(ABC):
    """A classifier of frozen features.

    Features X are (n, d) arrays or memory maps, float16 or float32; labels y are (n,) integers in 0..C-1, some perhaps absent.
    `progress(done, total)` is called while the fit advances.

    After it, `report` (JSON-able) holds `selected`, the settings chosen; `selected_on`, "val" or None; `grid` and `val_scores`,
    what was tried and its top-1 in percent, or None; `grid_edge`, whether the choice lies at an end of the grid that could be
    extended; `converged`, or None where that has no meaning; `notes`, what a reader of the number should know.
    """

    needs_validation: ClassVar[bool]
    _: KW_ONLY
    seed: int = 0
    device: str | torch.device = "cpu"
    progress: Callable[[int, int], None] | None = None

    @classmethod
    def settings(cls) -> list[str]:
        """Names of the arguments that a protocol may set."""
        return [field.name for field in fields(cls) if not field.kw_only]

    def chosen(self) -> dict[str, Any]:
        """Every setting with its value, defaults filled in: what a protocol of this probe means."""
        return {name: getattr(self, name) for name in self.settings()}

    def fit(
        self,
        X: np.ndarray,
        y: np.ndarray,
        X_val: np.ndarray | None = None,
        y_val: np.ndarray | None = None,
        n_classes: int | None = None,
    ) -> Self:
        """Learn from X, y. A probe that `needs_validation` chooses on X_val, y_val and learns from both; others ignore them.

        Raises UsageError where the arrays do not belong together, RingbenchError where the answer is not finite.
        """
        parts = [(X, y)]
        if self.needs_validation:
            if X_val is None or y_val is None:
                raise UsageError(f"{type(self).__name__} chooses its settings on validation data, and none was given")
            parts.append((X_val, y_val))
        self.n_features = X.shape[-1]
        self.n_classes = n_classes or int(max(y.max(initial=0) for _, y in parts)) + 1
        for features, labels in parts:
            self._check(features, labels)
        self.report: dict[str, Any] = {
            "selected": self.chosen(),
            "selected_on": None,
            "grid": None,
            "val_scores": None,
            "grid_edge": False,
            "converged": None,
            "notes": [],
        }
        self._fit(*((features, labels.astype(np.int64)) for features, labels in parts))
        return self

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Scores (n, C) float32 of the classes; larger is better. X is read in blocks."""
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise UsageError(f"found features of shape {X.shape}, expected (n, {self.n_features}) as in the fit")
        parts = [self._scores(block).cpu().numpy() for block in blocks(X, self.device)]
        return np.concatenate([np.empty((0, self.n_classes), np.float32), *parts])

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The class (n,) of the largest score; of equal scores, the first."""
        return self.scores(X).argmax(1)

    @abstractmethod
    def _fit(self, train: Labelled, *val: Labelled) -> None:
        """Learn, and complete the report."""

    @abstractmethod
    def _scores(self, X: Tensor) -> Tensor:
        """Scores (b, C) of features (b, d) float32 on the device."""

    def _advance(self, done: int, total: int) -> None:
        if self.progress:
            self.progress(done, total)

    def _check(self, X: np.ndarray, y: np.ndarray) -> None:
        if X.ndim != 2 or X.dtype.kind != "f" or not X.size or X.shape[1] != self.n_features:
            raise UsageError(f"found features {X.dtype}{X.shape}, expected floats of shape (n, {self.n_features}), n > 0")
        if y.shape != (len(X),) or y.dtype.kind not in "iu":
            raise UsageError(f"found labels {y.dtype}{y.shape} for {len(X)} feature rows, expected one integer each")
        if y.min() < 0 or y.max() >= self.n_classes:
            raise UsageError(f"found labels {y.min()}..{y.max()}, expected 0..{self.n_classes - 1}")
