"""Probes: arrays in, class scores out. One probe, one file, one line here."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ringbench.errors import UsageError
from ringbench.wording import nearest

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
    seed: int = 0,
    device: Any = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> "Probe":
    """The probe `name` with `settings`, its keyword arguments. Raises UsageError for an unknown name or setting or a wrong value.

    `progress(done, total)` is called as the fit advances.
    """
    if name not in PROBES:
        raise UsageError(f"unknown probe {name!r}{nearest(name, PROBES)}")
    module, _, attribute = PROBES[name].partition(":")
    probe = getattr(importlib.import_module(module), attribute)
    known = probe.settings()
    for setting in settings:
        if setting not in known:
            raise UsageError(f"probe {name!r} has no setting {setting!r}{nearest(setting, known)}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}  # YAML has no tuples
    try:
        return probe(**values, seed=seed, device=device, progress=progress)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"setting {place} of probe {name!r}: {first['msg']}, found {first['input']!r}") from None
