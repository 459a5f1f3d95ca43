"""The process that reads an untrusted checkpoint: little memory, little time, no torch, nothing of the file ever executed.

Standard input is the file. The answer is one safetensors file (backbones.untrusted.skeleton), or one line that says why not.
"""

import contextlib
import os
from pathlib import Path

from backbones.untrusted import containers, skeleton
from backbones.untrusted.inert import Refused

REFUSED = 3


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
