"""How long `bench list` takes, against Python alone and against `import torch`: medians of interleaved runs, in one go.

python benchmarks/startup.py [runs]
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "bench list": ["-m", "bench.cli", "list"],
    "import torch": ["-c", "import torch"],
}


def seconds(arguments: list[str]) -> float:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}  # an installed copy has its byte code
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main(runs: int) -> None:
    for arguments in COMMANDS.values():
        seconds(arguments)  # warm: byte code written, files in memory
    rounds = [{name: seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(runs)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in COMMANDS}
    listing = medians["bench list"]
    for name, median in medians.items():
        print(f"{name:<16}{median:7.3f} s   bench list is {listing / median:5.2f} x")
    print(f"bench list < 0.3 s: {'yes' if listing < 0.3 else 'no'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 9)
