"""The same global batch on one rank and on two: equal losses, gradients and memories (CASES B1, B2). Ranks that fail."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from pretrain import processes
from pretrain.distributed import gather, local_rows, rank, world
from pretrain.memory import EMA
from pretrain.negatives import Ring
from pretrain.objectives import get
from pretrain.shuffle_bn import shuffle, split_batch_norm, unshuffle
from ringbench.errors import RingbenchError, Unavailable, UsageError
from ringbench.stopping import Preempted

N, WIDTH, DIM, BATCH, STEPS = 40, 6, 5, 8, 3
BANK = {"n": N, "dim": DIM, "k": 7}
METHODS = {
    "ir": ("ir", BANK),
    "ir by nce": ("ir", {**BANK, "form": "nce"}),
    "iring": ("ir", {**BANK, "negatives": Ring(50, 90)}),
    "cmc": ("cmc", BANK),
    "cmcring": ("cmc", {**BANK, "negatives": Ring(50, 90)}),
    "moco": ("moco", {"size": 21, "dim": DIM}),  # 8 does not divide 21: the queue wraps around
    "mocoring": ("moco", {"size": 21, "dim": DIM, "negatives": Ring(50, 90)}),
    "simclr": ("simclr", {}),
    "simclrring": ("simclr", {"negatives": Ring(50, 90)}),
    "la": ("la", {"n": N, "dim": DIM, "background": 15, "runs": 2, "clusters": 6, "warm_start": False}),
    "dcl": ("dcl", {}),
    "dclw": ("dclw", {}),
    "balanced": ("balanced", {}),
    "supervised": ("supervised", {"classes": 3, "dim": DIM}),
}


def train(method: str) -> dict[str, torch.Tensor]:
    """Three steps; the losses, each step's gradients, and the objective's state at the end."""
    name, options = METHODS[method]
    torch.manual_seed(0)
    objective = get(name)(**options)
    encoder = nn.Sequential(nn.Linear(WIDTH, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
    ema = EMA(encoder, momentum=0.9)
    whole = nn.ModuleList([encoder, objective.classifier]) if name == "supervised" else nn.ModuleList([encoder])
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    draws = torch.Generator().manual_seed(1)
    views = torch.randn(STEPS, 2, BATCH, WIDTH, generator=torch.Generator().manual_seed(2))
    result = {}
    for step in range(STEPS):
        if name == "la":
            objective.cluster(seed=step)
        images = torch.randperm(N, generator=torch.Generator().manual_seed(step))[:BATCH]
        z = [encoder(local_rows(view)) for view in views[step, : len(objective.embeddings)]]
        if name == "moco":
            ema.update(encoder)
            z[1] = ema(local_rows(views[step, 1]))
        needs = {"index": local_rows(images), "labels": local_rows(images % 3), "generator": draws}
        needs = {key: needs[key] for key in objective.needs}
        loss = objective(*z, **needs)
        optimizer.zero_grad()
        loss.backward()
        result[f"loss {step}"] = gather(loss.detach()[None]).mean()
        for i, p in enumerate(whole.parameters()):
            p.grad = gather(p.grad[None]).mean(0)  # what DistributedDataParallel does
            result[f"gradient {step}.{i}"] = p.grad.clone()
        optimizer.step()
        objective.remember(*z, **needs)
    return result | {k: v for k, v in objective.state_dict().items() if isinstance(v, torch.Tensor)}


def keys_of_a_shuffled_batch() -> torch.Tensor:
    """The keys of the whole batch, in its order, from an encoder with batch norm."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, DIM)).train()
    if world() == 1:
        split_batch_norm(encoder, 2)
    images = torch.randn(BATCH, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        shuffled, order = shuffle(local_rows(images), torch.Generator().manual_seed(4))
        return gather(unshuffle(encoder(shuffled), order))


def everything() -> dict[str, dict[str, torch.Tensor]]:
    results = {method: train(method) for method in METHODS}
    results["shuffle-BN"] = {"keys": keys_of_a_shuffled_batch()}
    return results


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(everything(), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[dict, dict, dict]:
    """The results of one rank, and of each of two."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(worker, args=(str(folder),), nprocs=2)
    return everything(), *(torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))


@pytest.mark.parametrize("method", [*METHODS, "shuffle-BN"])
def test_two_ranks_do_what_one_rank_does_with_the_same_global_batch(method, runs):
    alone, first, second = (copy.copy(run[method]) for run in runs)
    assert alone.keys() == first.keys() == second.keys()
    for name in alone:
        torch.testing.assert_close(first[name], alone[name], rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        if name.startswith("gradient"):
            assert first[name].any()
    memories = [name for name in alone if not name.startswith(("loss", "gradient"))]
    assert all(torch.equal(first[name], second[name]) for name in memories)


def fail(where: str) -> None:
    """One of two ranks, of which one fails in some way while the other waits for it."""
    with processes.group(torch.device("cpu")):
        if where == "everywhere" or (where == "second" and rank() == 1):
            raise Unavailable("the images are not here")
        if where == "foreign" and rank() == 1:
            raise OSError(13, "Permission denied", "/data/cat.jpg")
        if where == "killed" and rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "silent" and rank() == 1:
            os._exit(7)
        dist.barrier()


@pytest.mark.parametrize(
    ("where", "kind", "sentence"),
    [
        ("everywhere", Unavailable, "^the images are not here$"),
        ("second", Unavailable, "^the images are not here$"),
        (
            "foreign",
            RingbenchError,
            r"^process 1: PermissionError: .* Permission denied: '/data/cat.jpg' \(--debug",
        ),
        ("killed", RingbenchError, r"^process 1 was killed by SIGKILL; was there too little memory\?$"),
        ("silent", RingbenchError, "^process 1 ended with exit code 7 and did not say why$"),
    ],
)
def test_what_the_first_rank_to_fail_says_is_what_a_person_is_told(where, kind, sentence, capfd):
    with pytest.raises(kind, match=sentence) as error:
        processes.start(2, fail, where)
    assert error.value.exit_code == kind.exit_code
    assert "Traceback" not in capfd.readouterr().err
    if where == "foreign":  # --debug shows it
        assert "in fail" in str(error.value.__cause__)


def wait(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, Preempted.exit_code)])
def test_ranks_that_are_asked_to_stop_do_so_without_a_word_of_their_own(number, code, tmp_path):
    program = f"""
import sys
from pretrain import processes
from ringbench.errors import RingbenchError
from test_ranks import wait
try:
    processes.start(2, wait, {str(tmp_path)!r})
except KeyboardInterrupt:
    sys.exit(130)
except RingbenchError as error:
    sys.exit(error.exit_code)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # Ctrl-C reaches the ranks too
        assert process.stderr.read() == ""
    assert process.returncode == code
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="every process needs a GPU, and here are 1"), processes.group(torch.device("cuda")):
        pass
