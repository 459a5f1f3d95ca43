"""A checkpoint of any kind → a safetensors file, in a process of its own with little memory, little time and no torch.

The child gets the file as its standard input, reads it to inert values (containers, unpickling, inert: nothing of the file is
ever executed) and answers with one safetensors file (skeleton) or with one line that says why not.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from backbones import containers, skeleton
from backbones.inert import Refused
from ringbench.errors import RingbenchError

REFUSED = 3
ENTRY = "import sys; sys.path.append(sys.argv[1]); from backbones import sandbox; sys.exit(sandbox.main(sys.argv[2]))"
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # without these some Pythons cannot start


def convert(path: Path, answer: Path) -> None:
    """Write the checkpoint `path` to the safetensors file `answer`.

    Raises:
        RingbenchError: it is no checkpoint, is damaged or hostile, or exceeds the limits of memory and time.
    """
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-I", "-S", "-B", "-c", ENTRY, str(root), str(answer)]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    seconds = 30 + path.stat().st_size / 10e6
    try:
        with path.open("rb") as file:
            child = subprocess.run(command, stdin=file, capture_output=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise failure(path, f"took over {seconds:.0f} s to read, as only hostile files do: do not use it") from None
    if child.returncode == REFUSED:
        raise failure(path, child.stdout.decode(errors="replace"))
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise failure(path, f"stopped its reader with status {child.returncode} ({last or 'killed'}): do not use it")


def main(answer: str) -> int:
    """The child: reads standard input, writes `answer`, returns the exit status."""
    try:
        with open(0, "rb") as file:
            size = os.fstat(0).st_size
            memory = (1 << 30) + 3 * size
            _limit(memory)
            contents = containers.read(file, size)
            skeleton.write(Path(answer), skeleton.Skeleton(contents, size))
    except Refused as refused:
        reason = str(refused)
    except MemoryError:
        reason = f"needs over {memory >> 20} MiB to read, far more than its size: do not use it"
    except RecursionError:
        reason = "nests its objects too deep, as no checkpoint does: save its state_dict alone"
    except OSError as error:
        reason = f"cannot be unpacked to {answer} ({error.strerror}): set BENCH_HOME to a place with room"
    else:
        return 0
    print(reason.encode("ascii", "backslashreplace").decode())
    return REFUSED


def failure(path: Path, reason: str) -> RingbenchError:
    """One printable line, whatever the file put into the reason."""
    line = " ".join(f"{path} {reason}".split())
    return RingbenchError("".join(c if c.isprintable() else "?" for c in line)[:500])


def _limit(memory: int) -> None:
    """Bound the address space, start no process, leave no core dump, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(limit)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS knows RLIMIT_AS but may not lower it
            resource.setrlimit(limit, (bound, bound))
