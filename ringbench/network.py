"""Whether the network may be used at all."""

import os

VARIABLES = ("BENCH_OFFLINE", "HF_HUB_OFFLINE")


def offline() -> str | None:
    """The environment variable that forbids the network, as it is set, or None. `bench --offline` sets the first."""
    for name in VARIABLES:
        if os.environ.get(name, "").lower() in {"1", "on", "yes", "true"}:
            return f"{name}={os.environ[name]}"
    return None
