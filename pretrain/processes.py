"""Several processes that share each batch: those of torchrun, or started here."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """This process as one rank of those its environment tells of (torchrun's variables), with the device that is its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def start(number: int, function: Callable[..., int], *arguments: object) -> int:
    """Run `function(*arguments)` in so many ranks on this machine and return the exit code: 0, or that of the first to fail.

    SIGTERM is passed on to all of them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.start_processes(_rank, (number, port, function, arguments), nprocs=number, join=False, start_method="spawn")
    before = signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in context.processes])
    try:
        while not context.join(grace_period=None):
            pass
    except ProcessExitedException as error:
        return error.exit_code
    except ProcessRaisedException as error:
        print(str(error), file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _rank(rank: int, number: int, port: int, function: Callable[..., int], arguments: tuple) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(number),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    torch.set_num_threads(max(1, torch.get_num_threads() // number))
    sys.exit(function(*arguments))
