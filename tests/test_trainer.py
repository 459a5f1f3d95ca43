"""The trainer: an interrupted run is an uninterrupted one, nothing half-written survives, and what is no number is no result."""

import importlib.util
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from imagesets.image_set import ImageSet, load
from imagesets.spec import ImagesetSpec
from pretrain import encoder
from pretrain import recipe as recipes
from pretrain.checkpoint import Checkpoints
from pretrain.data import Images
from pretrain.sampling import Sampler
from pretrain.trainer import Surroundings, Trainer
from ringbench.errors import RingbenchError, UsageError
from ringbench.stopping import Diverged, Preempted

COLOURS = ((0.3,) * 3, (0.4,) * 3)
SMALL = ["image_size=16", "resize=16", "epochs=2", "batch_size=16", "dim=8", "knn_every=1"]
SETTINGS = {
    "ir": ["settings.k=9"],
    "iring": ["settings.k=9", "negatives.over=0.7"],
    "moco": ["settings.size=37", "bn_groups=2"],  # 16 does not divide 37
    "mocoring": ["settings.size=37", "bn_groups=2", "negatives.annealing=adaptive"],
    "simclr": [],
    "simclrring": [],
    "cmc": ["settings.k=9"],
    "cmcring": ["settings.k=9"],
    "la": ["settings={background: 9, runs: 2, clusters: 5, k: 9}", "warm_share=0.5"],
    "supervised": [],
}
METHODS = [pytest.param(method, id=method) for method in SETTINGS]


class Tiny(nn.Module):
    """Stands in for a trunk: two convolutions instead of eighteen."""

    width = 6

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 6, 3, 2, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, 2, bias=False), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"res5": self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()}


class TinyStreams(nn.Module):
    width = 12

    def __init__(self) -> None:
        super().__init__()
        self.l_to_ab, self.ab_to_l = Tiny(1), Tiny(2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"res5": torch.cat([self.l_to_ab(x[:, :1])["res5"], self.ab_to_l(x[:, 1:])["res5"]], 1)}


def tiny(arch: str, stem: str) -> nn.Module:
    return TinyStreams() if stem == "lab" else Tiny()


@pytest.fixture(autouse=True)
def small_trunks(monkeypatch):
    monkeypatch.setattr(encoder, "build", tiny)


def recipe(method: str, *changes: str) -> recipes.Recipe:
    return recipes.load(f"{method}_digits", [*SMALL, *SETTINGS[method], *changes])


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> ImageSet:
    """60 digits, each in a colour of its own, and noise: 48 for training, 12 of them for validation."""
    whole = load(ImagesetSpec(name="digits", title="", provider="embedded", dataset="digits"), tmp_path_factory.mktemp("data"))
    few = {"train": np.arange(0, 36), "val": np.arange(36, 48), "test": np.arange(48, 60)}
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 100, (60, 8, 8, 3))  # a flat background has no variance, and batch norm would enlarge rounding errors
    pixels = (0.6 * whole.images[:60, :, :, None] * rng.uniform(0.2, 1, (60, 1, 1, 3)) + noise).astype(np.uint8)
    return ImageSet(whole.spec, whole.classes, whole.labels[:60], None, whole.keys[:60], few, [], None, pixels)


def trainer(digits, out, recipe, resume=False, **options) -> Trainer:
    around = Surroundings(out, torch.device("cpu"), resume, say=lambda line: None, **options)
    return Trainer(recipe, digits, *COLOURS, around)


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Every number there is: weights, memories, momenta."""
    found = {name: value for name, value in trainer.learner.state_dict().items() if isinstance(value, torch.Tensor)}
    for number, slots in trainer.optimizer.state_dict()["state"].items():
        found |= {f"optimizer {number} {name}": value for name, value in slots.items() if value is not None}
    ring = trainer.learner.ring
    return found | ({"ring": torch.tensor([ring.w_l, ring.w_u])} if trainer.recipe.negatives else {})


def interrupt_after(step: int):
    """A `progress` that has SIGTERM sent to this process after a step."""

    def progress(done: int, total: int) -> None:
        if done == step:
            signal.raise_signal(signal.SIGTERM)

    return progress


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one_to_the_last_bit(method, digits, tmp_path):
    whole = trainer(digits, tmp_path / "whole", recipe(method))
    whole.run()
    with pytest.raises(Preempted, match="after step 2"):
        trainer(digits, tmp_path / "parts", recipe(method), progress=interrupt_after(2)).run()
    with pytest.raises(Preempted, match="after step 4"):  # in the middle of the second epoch
        trainer(digits, tmp_path / "parts", recipe(method), resume=True, progress=interrupt_after(4)).run()
    parts = trainer(digits, tmp_path / "parts", recipe(method), resume=True)
    assert parts.step == 4
    parts.run()
    assert parts.step == whole.step == 2 * whole.sampler.steps
    first, second = state(whole), state(parts)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    steps = [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in steps if "loss" in line}
    assert list(losses) == list(range(1, whole.step + 1))
    assert losses == {
        line["step"]: line["loss"]
        for line in map(json.loads, (tmp_path / "whole" / "log.jsonl").read_text().splitlines())
        if "loss" in line
    }


def test_training_moves_every_weight_and_every_memory(digits, tmp_path):
    one = trainer(digits, tmp_path, recipe("moco"))
    before = {name: value.clone() for name, value in state(one).items()}
    one.run()
    after = state(one)
    assert [name for name, value in before.items() if torch.equal(value, after[name])] == []


def test_local_aggregation_clusters_before_its_first_step_or_after_its_warm_start(digits, tmp_path):
    cold = trainer(digits, tmp_path / "cold", recipe("la", "warm_share=0", "epochs=1"))
    cold.run()
    assert (cold.learner.objective.assignment >= 0).all()
    warm = trainer(digits, tmp_path / "warm", recipe("la", "warm_share=1"))
    warm.run()
    assert (warm.learner.objective.assignment < 0).all()


def test_a_loss_that_is_no_number_stops_the_run_and_names_step_and_batch(digits, tmp_path, monkeypatch):
    one = trainer(digits, tmp_path, recipe("ir"))
    honest = type(one.learner.objective).loss
    calls = itertools.count()

    def loss(self, *args):
        return honest(self, *args) * (float("nan") if next(calls) == 4 else 1)

    monkeypatch.setattr(type(one.learner.objective), "loss", loss)
    with pytest.raises(Diverged, match="the loss of step 4 is nan") as error:
        one.run()
    kept = one.checkpoints.latest()
    assert kept.name == "step_00000003.pt"  # of the first epoch
    assert f"; the last good checkpoint is {kept}; a lower lr" in str(error.value)
    assert all(t.isfinite().all() for t in one.checkpoints.read(kept)["learner"].values() if isinstance(t, torch.Tensor))
    record = json.loads((tmp_path / "diverged.json").read_text())
    expected = [digits.keys[i] for i in one.sampler.global_batch(4)]
    assert record == {"step": 4, "epoch": 1, "batch": 1, "images": expected}


def test_weights_that_are_no_numbers_are_never_saved(digits, tmp_path):
    one = trainer(digits, tmp_path, recipe("ir", "knn_every=0", "head=linear"))
    with torch.no_grad():
        one.learner.encoder.head.bias[0] = float("inf")
    with pytest.raises(Diverged, match=r"; no checkpoint had been written; a lower lr"):
        one._save()
    assert one.checkpoints.latest() is None


def test_a_folder_with_a_run_is_not_overwritten(digits, tmp_path):
    trainer(digits, tmp_path, recipe("supervised", "epochs=1")).run()
    with pytest.raises(UsageError, match=r"holds a run already.*--resume"):
        trainer(digits, tmp_path, recipe("supervised", "epochs=1"))
    with pytest.raises(UsageError, match="written with another epochs, lr:"):
        trainer(digits, tmp_path, recipe("supervised", "epochs=2", "lr=0.5"), resume=True)
    again = trainer(digits, tmp_path, recipe("supervised", "epochs=1", "name=other", "keep=9", "knn_every=0"), resume=True)
    again.log.close()
    assert again.step == 2  # nothing else is trained


def test_other_images_do_not_go_on_with_a_run(digits, tmp_path):
    trainer(digits, tmp_path, recipe("supervised", "epochs=1")).run()
    other = ImageSet(**{**vars_of(digits), "images": digits.images[::-1].copy()})
    with pytest.raises(UsageError, match="trained on other images"):
        trainer(other, tmp_path, recipe("supervised", "epochs=1"), resume=True)


def vars_of(images: ImageSet) -> dict:
    return {name: getattr(images, name) for name in images.__dataclass_fields__}


def test_the_last_checkpoints_and_the_best_are_kept(digits, tmp_path):
    one = trainer(digits, tmp_path, recipe("supervised", "epochs=4", "keep=2"))
    one.run()
    kept = sorted(path.name for path in one.checkpoints.folder.iterdir())
    assert kept == ["best.pt", "step_00000006.pt", "step_00000008.pt"]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[0].keys() == {"step", "epoch", "knn"} and log[0]["step"] == 0  # what training started from
    best = max(line["knn"] for line in log[1:] if "knn" in line)
    assert one.checkpoints.read(one.checkpoints.folder / "best.pt")["best"] == best == one.best


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    code = """
import sys, torch
from pathlib import Path
from pretrain.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]))
step = 1
while True:
    checkpoints.save({"step": step, "filling": torch.full((500_000,), float(step))}, step)
    step += 1
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(recipes.FOLDER.parents[1])}
    )
    checkpoints = Checkpoints(tmp_path)
    deadline = time.monotonic() + 50
    while not (latest := checkpoints.latest()) or latest.name < "step_00000005.pt" or not list(tmp_path.glob(".*.tmp")):
        assert time.monotonic() < deadline and process.poll() is None
    process.kill()
    process.wait()
    latest = checkpoints.latest()
    found = checkpoints.read(latest)
    assert latest.name == f"step_{found['step']:08d}.pt"
    assert (found["filling"] == found["step"]).all()
    checkpoints.save({"step": 0}, found["step"] + 1)
    assert list(tmp_path.glob(".*.tmp")) == []  # what the kill left is swept away


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "step_00000001.pt").write_bytes(b"half")
    with pytest.raises(RingbenchError, match=r"step_00000001\.pt cannot be read as a checkpoint"):
        Checkpoints(tmp_path).read(Checkpoints(tmp_path).latest())


def test_an_accumulated_step_is_that_of_the_whole_batch(digits, tmp_path):
    """Batch norm in two groups sees what it sees in two parts, and a supervised step draws nothing."""
    whole, parts = (
        trainer(digits, tmp_path / str(n), recipe("supervised", "epochs=1", f"accumulate={n}", f"bn_groups={3 - n}"))
        for n in (1, 2)
    )
    for one in (whole, parts):
        one.run()
    assert whole.epoch_losses == pytest.approx(parts.epoch_losses, rel=1e-5)
    for first, second in zip(whole.learner.parameters(), parts.learner.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def test_a_sampler_visits_each_image_once_and_pads_nothing():
    for ranks in (1, 2, 4):
        samplers = [Sampler(50, 8, 3, rank, ranks) for rank in range(ranks)]
        batches = [torch.cat(parts) for parts in zip(*(list(s.rest_of(5)) for s in samplers), strict=True)]
        seen = torch.cat(batches).tolist()
        assert len(batches) == 6 and len(seen) == len(set(seen)) == 48
        assert [b.tolist() for b in batches] == [b.tolist() for b in Sampler(50, 8, 3).rest_of(5)]
        assert batches[2].tolist() == Sampler(50, 8, 3).global_batch(5 * 6 + 2).tolist()
    assert torch.cat(list(Sampler(50, 8, 3).rest_of(6))).tolist() != seen


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(UsageError, match="a batch of 64 images"):
        Sampler(50, 64, 0)
    with pytest.raises(UsageError, match="cannot be shared by 3 ranks"):
        Sampler(50, 8, 0, 0, 3)


def test_images_read_from_files_batch_by_batch_equal_those_kept_on_the_device(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, name, i in itertools.product(("train", "test"), "ab", range(6)):
        folder = tmp_path / "folder" / split / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (20 + i, 31 - i, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    images = load(ImagesetSpec(name="folder", title="", provider="folder"), tmp_path)
    kept, read = (Images(images, images.trainval, 16, torch.device("cpu"), limit) for limit in (10**9, 0))
    assert kept.resident is not None and read.resident is None
    order = [torch.tensor([3, 0, 7]), torch.tensor([1, 2, 5]), torch.tensor([4, 6, 8]), torch.tensor([9, 10, 11])] * 2
    for (i, a), (j, b) in zip(kept.batches(order), read.batches(order), strict=True):
        assert torch.equal(i, j) and torch.equal(a, b) and a.shape == (3, 3, 16, 16)
    assert read.waited > 0 and kept.waited == 0


RANKED = ["ir", "iring", "moco", "mocoring", "simclrring", "cmc", "la", "supervised"]


def three_steps(method: str, digits: ImageSet, out) -> dict[str, torch.Tensor]:
    groups = "bn_groups=2"  # one for each of two ranks; on one rank the batch is cut in two
    one = trainer(digits, out / method, recipe(method, groups, "epochs=1", "knn_every=0", "schedule=constant", "lr=0.01"))
    one.run()
    found = {f"loss {i}": torch.tensor(loss) for i, loss in enumerate(one.epoch_losses)}
    return found | {name: value for name, value in state(one).items() if "running" not in name and "num_batches" not in name}


def ranked(rank: int, folder, digits: ImageSet) -> None:
    torch.set_num_threads(1)
    encoder.build = tiny
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save({method: three_steps(method, digits, folder / "two") for method in RANKED}, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_train_as_one(digits, tmp_path):
    mp.spawn(ranked, args=(tmp_path, digits), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for method in RANKED:
        alone = three_steps(method, digits, tmp_path / "one")
        assert alone.keys() == first[method].keys()
        for name, value in alone.items():
            torch.testing.assert_close(
                first[method][name], value, rtol=1e-4, atol=1e-5, msg=lambda m, at=(method, name): f"{at}: {m}"
            )
            assert torch.equal(first[method][name], second[method][name]), f"{method} {name}"
    logs = list((tmp_path / "two" / "ir").iterdir())
    board = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    assert sorted(path.name for path in logs) == ["checkpoints", "log.jsonl", *board]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("optimizer"),
        lambda state: state.update(step=10**9),
        lambda state: state["learner"].popitem(),
        lambda state: state.update(learner=[1]),
    ],
)
def test_a_checkpoint_that_holds_something_else_is_named_with_what_to_do(digits, tmp_path, change):
    one = trainer(digits, tmp_path, recipe("ir", "epochs=1"))
    one.run()
    path = one.checkpoints.latest()
    state = one.checkpoints.read(path)
    change(state)
    torch.save(state, path)
    with pytest.raises(
        RingbenchError, match=rf"{path} cannot be read as a checkpoint \(.*remove it to go on from an earlier one"
    ):
        trainer(digits, tmp_path, recipe("ir", "epochs=1"), resume=True)


def test_lines_of_a_log_that_are_no_records_are_left_behind(digits, tmp_path):
    trainer(digits, tmp_path, recipe("ir", "epochs=1")).run()
    path = tmp_path / "log.jsonl"
    kept = path.read_text()
    path.write_bytes(kept.encode() + b'\0\0\0\n{"step": \n{"step": "x"}\n[]\n\xff\n{"step": 1, "cut')
    again = trainer(digits, tmp_path, recipe("ir", "epochs=1"), resume=True)
    again.log.close()
    assert path.read_text() == kept


def test_a_full_disk_is_told_as_that_and_the_checkpoint_before_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.save({"x": torch.zeros(10)}, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save({"x": torch.zeros(1_000_000)}, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@pytest.mark.parametrize(
    ("changes", "ranks", "sentence"),
    [
        (["accumulate=16"], 1, "batch norm would see one image at a time: a batch of 16"),
        (["bn_groups=16"], 1, "batch norm would see one image at a time"),
        (["accumulate=4", "bn_groups=4"], 1, "batch norm would see one image at a time"),
        (["accumulate=16"], 2, "a batch of 16 cannot be cut into 16 equal parts on each of 2 ranks"),
        ([], 16, "batch norm would see one image at a time"),
        ([], 3, "cannot be shared by 3 ranks"),
    ],
)
def test_parts_of_a_batch_that_nothing_can_be_learnt_from_are_refused(changes, ranks, sentence, digits, tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.trainer.world", lambda: ranks)
    with pytest.raises(UsageError, match=sentence):
        trainer(digits, tmp_path, recipe("supervised", *changes))


def test_a_crop_of_less_than_a_pixel_is_one_of_one(digits, tmp_path):
    one = trainer(digits, tmp_path, recipe("supervised", "resize=9999", "epochs=1"))
    one.run()
    assert one.monitor.crop == 1 and one.best > 0
