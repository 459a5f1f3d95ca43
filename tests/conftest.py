"""Fixtures every test may use: an isolated home, and the real images that lie beside the repository where it has them."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before torch is loaded: the workers share the cores already

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
UNPACKED = Path(os.environ.get("RINGBENCH_TEST_CACHE", ROOT / ".cache" / "real"))


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the home, data or working folder of the person who runs it."""
    monkeypatch.setenv("BENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """`real_data("dtd10")` is the folder of that real image set, unpacked once; the test skips where the sets are absent."""

    def unpacked(name: str) -> Path:
        tool = SHARED / "tools" / "unpack_data.py"
        if not tool.exists():
            pytest.skip(f"real image sets are not here ({tool.parent.parent} is missing)")
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with (UNPACKED / ".lock").open("w") as lock:  # parallel workers unpack once
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([sys.executable, str(tool), str(UNPACKED), name], check=True, capture_output=True)
        return UNPACKED / name

    return unpacked
