"""Reading a ResNet-50 checkpoint safely, against `torch.load(weights_only=True)`: time and peak memory, in one run (Linux).

    python benchmarks/reading.py [ROUNDS]

Both touch every page of the tensors, since `reading.read` maps what torch.load copies. Rounds alternate between the two. Peak
memory is what reading adds to a process that has read a small file before, plus the whole peak of the sandbox.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from torchvision.models import resnet50

from backbones import reading

ROOT = Path(__file__).resolve().parent.parent
READERS = {
    "torch.load": lambda path: torch.load(path, map_location="cpu", weights_only=True),
    "reading.read": lambda path: reading.read(path).tree,
}
START = [sys.executable, "-I", "-S", "-B", "-c", reading.CHILD.replace("sys.exit", "0 and sys.exit"), str(ROOT), "-"]
PEAK = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(-1).ru_maxrss)"


def write_files(folder: Path) -> dict[str, Path]:
    state = resnet50().state_dict()
    torch.save(state, folder / "zip.pth")
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    (folder / "arrays.pkl").write_bytes(pickle.dumps({name: tensor.numpy() for name, tensor in state.items()}))
    save_file(state, folder / "mapped.safetensors")
    return {name: folder / name for name in ("zip.pth", "legacy.pth", "arrays.pkl", "mapped.safetensors")}


def touch(tree: dict[str, Any]) -> None:
    for tensor in tree.values():
        tensor.view(-1)[::512].sum()


def seconds(action: Any, *arguments: Any) -> float:
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


def read(reader: str, path: Path) -> None:
    touch(READERS[reader](path))


def print_peak(reader: str, path: Path) -> None:
    """How many bytes reading adds to this process' peak."""
    small = path.with_name("small.pth")
    torch.save({"w": torch.ones(9)}, small)
    read(reader, small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    read(reader, path)
    print(_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[field].split()[0])


def peak(reader: str, path: Path) -> float:
    """Peak memory of reading, times the file's size."""
    command = [sys.executable, __file__, "--peak", reader, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    total = int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    if reader == "reading.read" and path.suffix != ".safetensors":
        child = [sys.executable, "-I", "-S", "-B", "-c", reading.CHILD, str(ROOT), str(path.with_name("answer"))]
        with path.open("rb") as file:  # started by a small process, as a new one inherits the peak of the one that starts it
            measured = subprocess.run(
                [sys.executable, "-I", "-S", "-c", PEAK, *child], stdin=file, check=True, capture_output=True
            )
        total += 1024 * int(measured.stdout)
    return total / path.stat().st_size


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        os.environ["BENCH_HOME"] = folder
        paths = write_files(Path(folder))
        start = median(seconds(subprocess.run, START) for _ in range(rounds))
        for name, path in paths.items():
            readers = [*READERS] if path.suffix == ".pth" else ["reading.read"]  # torch.load reads no other
            times = [{reader: seconds(read, reader, path) for reader in readers} for _ in range(rounds + 1)][1:]
            typical = {reader: median(each[reader] for each in times) for reader in readers}
            for reader in readers:
                print(f"{name:<20}{reader:<14}{typical[reader]:7.3f} s   peak memory {peak(reader, path):4.2f} x file", end="")
                ratio = (typical[reader] - start) / typical.get("torch.load", float("nan"))
                print("" if reader == "torch.load" or len(readers) == 1 else f"   {ratio:.2f} x torch.load")
        print(f"Ratios are without the {start:.3f} s in which the sandbox starts. Allowed: 1.5 x torch.load, 2.2 x file.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(sys.argv[2], Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 9)
