"""Several processes that share each batch: those of torchrun, or started here."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ringbench import children
from ringbench.errors import UsageError


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """This process as one rank of those its environment tells of (torchrun's variables), with the device that is its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise UsageError(f"every process needs a GPU, and here are {torch.cuda.device_count()}: --nproc should be no more")
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    yield device
    dist.destroy_process_group()  # not after an error: the others would fail of that, and perhaps tell theirs before this one


def is_first() -> bool:
    """Whether this process is the one that speaks for all. Unlike `distributed.rank` it needs no group to be there."""
    return os.environ.get("RANK", "0") == "0"


def start(number: int, function: Callable[..., None], *arguments: object) -> None:
    """Run `function(*arguments)` in so many ranks on this machine. Raises what the first of them to fail raised."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with children.working():
        mp.start_processes(_rank, (number, port, function, arguments), nprocs=number, start_method="spawn")


def _rank(rank: int, number: int, port: int, function: Callable[..., None], arguments: tuple) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(number),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    torch.set_num_threads(max(1, torch.get_num_threads() // number))
    function(*arguments)
