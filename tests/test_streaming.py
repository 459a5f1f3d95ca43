"""The Triton kernels of pretrain.streaming without a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("streaming_cases.py")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_pass_their_cases_in_tritons_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(CASES.parent.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(CASES)]
    run = subprocess.run(command, env=environment, cwd=CASES.parent.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
