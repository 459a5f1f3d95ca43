"""What becomes of the errors and signals of processes that share one piece of work."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from imagesets.decode import BadImage
from ringbench.children import working
from ringbench.errors import RingbenchError, UsageError, sentence
from ringbench.stopping import Preempted, Termination


def start(function, *arguments) -> None:
    with working():
        mp.start_processes(function, arguments, nprocs=2, start_method="spawn")


def refuse(rank: int) -> None:
    if rank == 1:
        raise UsageError("the second process: it says what is wrong")
    time.sleep(60)


def stumble(rank: int) -> None:
    raise ZeroDivisionError("no sentence of ours")


def stumble_at_length(rank: int) -> None:
    raise OSError("the first line: with a colon\nand another\n  and more")


def die(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end(rank: int, folder: Path) -> None:
    with Termination() as termination:
        (folder / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while not termination.come and time.monotonic() < deadline:
            time.sleep(0.02)
    raise Preempted("a checkpoint is left") if termination.come else TimeoutError


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (refuse, UsageError, r"^the second process: it says what is wrong$"),
        (stumble, RingbenchError, r"^process [01]: ZeroDivisionError: no sentence of ours \(--debug shows where\)$"),
        (stumble_at_length, RingbenchError, r"^process [01]: OSError: the first line: with a colon \(--debug shows where\)$"),
        (die, RingbenchError, r"^process [01] was killed by SIGKILL; was there too little memory\?$"),
    ],
)
def test_the_error_of_one_process_is_told_as_if_it_were_here(function, error, words):
    with pytest.raises(error, match=words):
        start(function)


def test_sigterm_reaches_every_process(tmp_path):
    def ask_back():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask_back, daemon=True).start()
    with pytest.raises(Preempted, match="a checkpoint is left"):
        start(wait_for_the_end, tmp_path)


class Unreadable(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int):
        raise BadImage("x.jpg cannot be decoded: broken data stream")


def test_the_error_of_a_process_that_loads_data_is_its_own_sentence():
    with pytest.raises(BadImage) as error:
        next(iter(torch.utils.data.DataLoader(Unreadable(), num_workers=1)))
    assert sentence(error.value) == "x.jpg cannot be decoded: broken data stream"
