"""Several processes that share each batch: those of torchrun, or started here."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pretrain.stopping import Preempted
from ringbench.errors import RingbenchError, UsageError, sentence

GRACE_S = 30  # that the other ranks have to end once one has failed
FRAMES = 50  # of a traceback; a pipe holds 64 kB


def is_first() -> bool:
    """Whether this process is the rank that speaks for all. Unlike `distributed.rank` it needs no group to be up."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """This process as one rank of those its environment tells of (torchrun's variables), with the device that is its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise UsageError(f"each process needs a GPU of its own, found {torch.cuda.device_count()}: a smaller --nproc fits")
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    yield device
    dist.destroy_process_group()  # not after an error: the others would fail of that, and perhaps tell theirs before this one


def start(number: int, function: Callable[..., None], *arguments: object) -> None:
    """Run `function(*arguments)` in so many ranks on this machine. SIGTERM is passed on to all of them.

    Raises what the first rank to fail raised, any other error than ours as a RingbenchError, or that a rank was killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = mp.get_context("spawn").SimpleQueue()
    impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # by the ranks until they can end quietly
    context = mp.start_processes(_rank, (number, port, told, function, arguments), number, join=False, start_method="spawn")
    signal.signal(signal.SIGINT, impatient)
    ranks, asked = context.processes, []

    def pass_on(*_: object) -> None:
        asked.append(True)
        for process in ranks:
            process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        running = [each.sentinel for each in ranks]
        while running and not any(each.exitcode for each in ranks):
            wait(running)  # for none it would wait forever
            running = [each.sentinel for each in ranks if each.exitcode is None]
        codes = [each.exitcode for each in ranks]
    finally:
        deadline = time.monotonic() + GRACE_S
        for each in ranks:
            each.terminate()
        for each in ranks:
            each.join(max(0, deadline - time.monotonic()))
            each.kill()
        signal.signal(signal.SIGTERM, before)
    _raise(codes, None if told.empty() else told.get(), bool(asked))


def _raise(codes: list[int | None], told: tuple[RingbenchError, str] | None, asked: bool) -> None:
    """Of the exit codes of the ranks, None for one that was still at work, and of what the first to fail told."""
    for rank, code in enumerate(codes):
        if code == -signal.SIGTERM and asked:  # before the training or after it: within it a rank ends by itself
            raise Preempted("stopped by SIGTERM; --resume goes on from the last checkpoint, if there is one")
        if code and code < 0:
            name = f"{signal.strsignal(-code)}{'; is the memory full?' * (-code == signal.SIGKILL)}"
            raise RingbenchError(f"rank {rank} was killed by signal {-code} ({name}); --resume goes on from the last checkpoint")
    if told:
        error, where = told
        raise error from RuntimeError(where)
    if any(codes):
        raise RingbenchError(f"a rank ended with exit code {next(filter(None, codes))} and did not say why")


def _rank(rank: int, number: int, port: int, told: mp.SimpleQueue, function: Callable[..., None], arguments: tuple) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(number),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(max(1, torch.get_num_threads() // number))
    try:
        function(*arguments)
    except KeyboardInterrupt:  # the process that started this one says so
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if told.empty():
            ours = error if isinstance(error, RingbenchError) else RingbenchError(sentence(error))
            told.put((ours, f"\n{traceback.format_exc(limit=-FRAMES)}"))
        sys.exit(1)
