"""Where things live: BENCH_DATA for image sets, BENCH_HOME for caches, the user's registry and converted checkpoints.

Raises UsageError where one of the two names a file.
"""

import os
from pathlib import Path

from platformdirs import user_data_path

from ringbench.errors import UsageError


def home() -> Path:
    """BENCH_HOME, or the platform's folder for user data."""
    return _from_environment("BENCH_HOME") or user_data_path("ringbench", appauthor=False)


def data() -> Path:
    """BENCH_DATA, or `data` under the home."""
    return _from_environment("BENCH_DATA") or home() / "data"


def checkpoints() -> Path:
    return home() / "checkpoints"


def cache() -> Path:
    return home() / "cache"


def certificate(sha256: str) -> Path:
    """Of the checkpoint with this digest, as `bench register` read it."""
    return home() / "certificates" / f"{sha256}.json"


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    if not value:
        return None
    path = Path(value).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{name} is {path}, a file; let it name a folder")
    return path
