"""What a number was made with, and why there is none: the parts of a record that help to understand it later."""

import subprocess
import traceback
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from bench.plan import Cell, Options
from ringbench import versions as tools
from ringbench.errors import sentence

ROOT = Path(__file__).resolve().parent.parent


@cache
def versions(*libraries: str) -> dict[str, str]:
    """Of ringbench, with the commit where it runs from a checkout, of Python, of what the numbers rest on, and of `libraries`."""
    found = tools.versions(*libraries)
    return found | {"commit": commit} if (commit := _commit()) else found


def identity(cell: Cell) -> dict[str, Any]:
    return {
        "backbone": cell.backbone.name,
        "task": cell.task.name,
        "protocol": cell.protocol.name,
        "imageset": cell.imageset.name,
        "seed": cell.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def failure(cell: Cell, options: Options, error: Exception) -> dict[str, Any]:
    """The record of a failed cell."""
    return {
        **identity(cell),
        "status": "failed",
        "reasons": [sentence(error)],
        "metric": cell.metric,
        "metrics": {},
        "asked": {"source": cell.backbone.source, "device": options.device, "dtype": options.dtype, "data": str(options.data)},
        "versions": versions(),
        "traceback": "".join(traceback.format_exception(error)).splitlines(),
    }


def _commit() -> str | None:
    """Such as 1a2b3c..., with -dirty where files differ from it; None where ROOT is no checkout or git is absent."""
    if not (ROOT / ".git").exists():  # installed, perhaps into a folder below another project's checkout
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
