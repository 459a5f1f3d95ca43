"""Probes: arrays in, class scores out. One probe, one file, one line here."""

import difflib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ringbench.errors import UsageError

if TYPE_CHECKING:
    from transfer.probes.base import Probe

PROBES = {
    "sgd": "transfer.probes.sgd:SGDProbe",
    "logreg": "transfer.probes.logreg:LogregProbe",
    "knn": "transfer.probes.knn:KNNProbe",
}


def make(
    name: str,
    settings: dict[str, Any],
    *,
    seed: int,
    device: Any,
    progress: Callable[[int, int], None] | None = None,
) -> "Probe":
    """The probe `name` with `settings`, its keyword arguments. Raises UsageError for an unknown name or setting or a wrong value.

    `progress(done, total)` is called as the fit advances.
    """
    if name not in PROBES:
        raise UsageError(f"unknown probe {name!r}{_nearest(name, PROBES)}; there are {', '.join(PROBES)}")
    module, _, attribute = PROBES[name].partition(":")
    probe = getattr(importlib.import_module(module), attribute)
    known = probe.settings()
    for setting in settings:
        if setting not in known:
            raise UsageError(f"probe {name!r} has no setting {setting!r}{_nearest(setting, known)}; it has {', '.join(known)}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}  # YAML has no tuples
    try:
        return probe(**values, seed=seed, device=device, progress=progress)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"setting {place} of probe {name!r}: {first['msg']}, found {first['input']!r}") from None


def _nearest(word: str, words: Any) -> str:
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
