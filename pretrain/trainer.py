"""The training loop."""

import contextlib
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from imagesets.image_set import ImageSet
from pretrain import optimizers
from pretrain.checkpoint import Checkpoints, taking_up
from pretrain.data import RESIDENT, Images
from pretrain.distributed import anywhere, gather, rank, world
from pretrain.learner import Learner
from pretrain.log import Log, Silent
from pretrain.monitor import Monitor
from pretrain.sampling import Sampler, generator
from pretrain.spec import Recipe
from pretrain.views.families import family
from pretrain.views.step import select
from ringbench import files
from ringbench.errors import UsageError
from ringbench.stopping import Diverged, Preempted, Termination

LOOK_EVERY = 10  # steps between two looks at the losses: a look waits for the device
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Surroundings:
    """Where and how a recipe is run, whatever the recipe."""

    out: Path
    device: torch.device
    resume: bool = False
    resident: int = RESIDENT
    say: Callable[[str], None] = print
    progress: Callable[[int, int], None] = lambda done, total: None  # steps


def _parallel(learner: Learner) -> DistributedDataParallel:
    """Gradients are averaged over the ranks; memories keep themselves equal, and batch norm statistics stay each rank's own."""
    names = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # before torch 2.14
    return DistributedDataParallel(learner, **{buffers: False})


def _check_parts(recipe: Recipe) -> None:
    """Every rank has as many equal parts of a batch as gradients are accumulated over, and batch norm no part of one image."""
    parts, batch = world() * recipe.accumulate, recipe.batch_size
    if batch % parts:
        raise UsageError(f"a batch of {batch} cannot be cut into {recipe.accumulate} equal parts on each of {world()} ranks")
    if batch < 2 * max(parts, recipe.accumulate * recipe.bn_groups):
        raise UsageError(f"batch norm would see one image at a time: a batch of {batch} is too small for so many parts")


class Trainer:
    """One recipe on the train and validation images of one set; `mean` and `std` are its colours'.

    A step is a function of the state and the step's number: every random number is drawn from a generator made for the step, for
    the batch of all ranks. So a run that was interrupted, or has another number of ranks, does the same.
    """

    def __init__(self, recipe: Recipe, images: ImageSet, mean: Triple, std: Triple, around: Surroundings) -> None:
        self.recipe, self.images, self.around, device = recipe, images, around, around.device
        self.data = Images(images, images.trainval, recipe.resize, device, around.resident)
        train, val = (self.data.positions(images.splits[split]) for split in ("train", "val"))
        self.labels = torch.from_numpy(images.labels[images.trainval]).to(device)
        learner = Learner(recipe, len(self.data), len(images.classes), world())
        self.trained = torch.from_numpy(train) if "labels" in learner.objective.needs else torch.arange(len(self.data))
        self.sampler = Sampler(len(self.trained), recipe.batch_size, recipe.seed, rank(), world())
        _check_parts(recipe)
        self.augment = family(recipe.views, recipe.image_size, mean, std)
        colours = (torch.tensor(numbers, device=device).view(1, 3, 1, 1) for numbers in (mean, std))
        crop = recipe.image_size / max(recipe.resize, recipe.image_size)
        self.monitor = Monitor(self.data, train, val, self.labels, crop, recipe.image_size, *colours)

        self.learner = learner.to(device, memory_format=torch.channels_last).train()
        if recipe.compile:
            self.learner.encoder.compile()
        self.model = _parallel(self.learner) if world() > 1 else self.learner
        self.optimizer = optimizers.make(recipe, self.learner)
        half = recipe.precision == "bfloat16" or (recipe.precision == "auto" and device.type == "cuda")
        self.autocast = lambda: torch.autocast(device.type, torch.bfloat16, enabled=half)

        self.step, self.best, self.last_loss = 0, 0.0, 0.0
        self.losses: list[Tensor] = []  # of the steps since the last look
        self.look_every = 1 if device.type == "cpu" else LOOK_EVERY
        self.checkpoints = Checkpoints(around.out / "checkpoints", recipe.keep)
        self._go_on()
        self.log = Log(around.out, self.step, around.say) if rank() == 0 else Silent()

    def run(self) -> None:
        """Train to the end. Raises Preempted after SIGTERM and Diverged where a loss is no number; a checkpoint is left."""
        recipe, steps = self.recipe, self.sampler.steps
        with Termination() as termination, contextlib.closing(self.log):
            if self.step == 0 and recipe.knn_every and rank() == 0:
                untrained = self._knn()
                self.log.write(0, epoch=0, knn=untrained)
                self.around.say(f"untrained  kNN {100 * untrained:5.2f}%")
            for epoch in range(self.step // steps, recipe.epochs):
                self._begin_epoch(epoch)
                order = (self.trained[batch] for batch in self.sampler.rest_of(epoch, self.step % steps))
                for positions, pixels in self.data.batches(order):
                    self.train_step(positions, pixels)
                    self.around.progress(self.step, recipe.epochs * steps)
                    if self.step % self.look_every == 0 or self.step % steps == 0:
                        self._look()
                        if anywhere(termination.come, self.around.device):
                            self._save()
                            raise Preempted(f"stopped by SIGTERM after step {self.step}; --resume goes on from there")
                self._end_epoch(epoch + 1)

    def train_step(self, positions: Tensor, pixels: Tensor) -> None:
        """One step on this rank's images: positions (b,) and uint8 pixels (b, 3, S, S)."""
        recipe, learner = self.recipe, self.learner
        for group in self.optimizer.param_groups:
            group["lr"] = optimizers.rate(recipe, self.step / self.sampler.steps)
        self._anneal()
        if learner.ema is not None:
            learner.ema.update(learner.encoder)
        views = [self._view(pixels, number) for number in range(learner.views)]
        draws, order = (generator(recipe.seed, purpose, self.step) for purpose in ("draws", "shuffle"))
        whole = {"index": positions, "labels": self.labels[positions], "generator": draws}
        whole = {name: whole[name] for name in learner.objective.needs}
        remembered, losses = [], []
        for part in torch.arange(len(pixels), device=pixels.device).chunk(recipe.accumulate):
            needs = {name: value[part] if isinstance(value, Tensor) else value for name, value in whole.items()}
            last = len(losses) + 1 == recipe.accumulate
            with contextlib.nullcontext() if last or world() == 1 else self.model.no_sync():
                with self.autocast():
                    loss, embeddings = self.model([view[part] for view in views], needs, order)
                (loss / recipe.accumulate).backward()
            losses.append(loss.detach())
            remembered.append(embeddings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        learner.objective.remember(*map(torch.cat, zip(*remembered, strict=True)), **whole)
        self.losses.append(torch.stack(losses).mean())
        self.step += 1

    def _view(self, pixels: Tensor, number: int) -> Tensor:
        """A view of this rank's images, drawn among those of all ranks."""
        b = len(pixels)
        drawn = self.augment.draw(
            (self.recipe.batch_size, *pixels.shape[1:]), generator(self.recipe.seed, "view", self.step, number)
        )
        rows = slice(rank() * b, rank() * b + b)
        view = self.augment.apply(pixels, [select(parameters, rows) for parameters in drawn])
        return view.to(memory_format=torch.channels_last)

    def _anneal(self) -> None:
        if self.recipe.negatives:
            total = self.recipe.epochs * self.sampler.steps
            if self.recipe.negatives.annealing == "adaptive":
                self._look()  # it follows the loss, and waits for it
            self.learner.ring.anneal(self.step / (self.recipe.negatives.over * total), self.last_loss)

    def _look(self) -> None:
        """Read the losses of the last steps. Raises Diverged at the first that is no number."""
        if not self.losses:
            return
        losses = gather(torch.stack(self.losses)[None]).mean(dim=0).tolist()
        first = self.step - len(losses)
        self.losses = []
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                self._diverged(step, f"the loss of step {step} is {loss}")
        self.epoch_losses += losses
        self.last_loss = losses[-1]
        ring = {"w_l": self.learner.ring.w_l, "w_u": self.learner.ring.w_u} if self.recipe.negatives else {}
        self.log.write(self.step, loss=sum(losses) / len(losses), lr=self.optimizer.param_groups[0]["lr"], **ring)

    def _diverged(self, step: int, finding: str) -> NoReturn:
        epoch, batch = divmod(step, self.sampler.steps)
        keys = [self.images.keys[self.data.indices[self.trained[i]]] for i in self.sampler.global_batch(step)]
        record = self.around.out / "diverged.json"
        if rank() == 0:
            files.write_json(record, {"step": step, "epoch": epoch, "batch": batch, "images": keys})
        last = self.checkpoints.latest()
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint had been written"
        raise Diverged(
            f"{finding} (batch {batch} of epoch {epoch}: {keys[0]} and {len(keys) - 1} more, all in {record}); "
            f"{kept}; a lower lr or float32 may help"
        )

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch_began, self.epoch_waited, self.epoch_losses = time.perf_counter(), self.data.waited, []
        warm = epoch < round(self.recipe.warm_share * self.recipe.epochs)
        if self.recipe.objective == "la" and not warm and self.step % self.sampler.steps == 0:
            self.learner.objective.cluster(epoch)

    def _end_epoch(self, epoch: int) -> None:
        recipe, seconds, done = self.recipe, time.perf_counter() - self.epoch_began, len(self.epoch_losses)
        values = {
            "epoch": epoch,
            "epoch_loss": sum(self.epoch_losses) / done,
            "images_per_s": done * recipe.batch_size / seconds,
            "stalled": (self.data.waited - self.epoch_waited) / seconds,
        }
        last = epoch == recipe.epochs
        if recipe.knn_every and (epoch % recipe.knn_every == 0 or last) and rank() == 0:
            values["knn"] = self._knn()
        best = values.get("knn", 0.0) > self.best
        self.best = max(self.best, values.get("knn", 0.0))
        if epoch % recipe.save_every == 0 or last or best:
            self._save(best)
        self.log.write(self.step, **values)
        self.log.epoch(epoch, recipe.epochs, values, (recipe.epochs - epoch) * seconds * self.sampler.steps / done)

    def _knn(self) -> float:
        with self.autocast():
            return self.monitor.accuracy(self.learner.encoder)

    def _save(self, best: bool = False) -> None:
        """Every rank calls it, the first writes: memories are equal on all, and batch norm statistics are the first's."""
        spoilt = [name for name, value in self.learner.named_parameters() if not value.isfinite().all()]
        if spoilt:
            self._diverged(self.step - 1, f"{spoilt[0]} holds NaN or infinite values after step {self.step - 1}")
        if rank() == 0:
            state = {
                "recipe": self.recipe.model_dump(),
                "data": self._data_identity(),
                "step": self.step,
                "learner": self.learner.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best": self.best,
                "last_loss": self.last_loss,
            }
            self.checkpoints.save(state, self.step, best)
        if world() > 1:
            dist.barrier()

    def _data_identity(self) -> str:
        return files.digest([self.images.fingerprint, self.images.split_hash])

    def _go_on(self) -> None:
        """Take up the last checkpoint, if that is asked for and there is one."""
        path = self.checkpoints.latest()
        if path and not self.around.resume:
            raise UsageError(
                f"{self.around.out} holds a run already ({path.name}): --resume goes on with it, --out DIR starts another"
            )
        if not path:
            return
        state = self.checkpoints.read(path)
        with taking_up(path):
            self._take_up(state, path)

    def _take_up(self, state: dict, path: Path) -> None:
        if changed := self.recipe.differing(state["recipe"]):
            raise UsageError(f"{path} was written with another {', '.join(changed)}: give the same, or --out DIR for another run")
        if state["data"] != self._data_identity():
            raise UsageError(f"{path} was trained on other images or splits: give the same --data, or --out DIR for another run")
        if not 0 <= state["step"] <= self.recipe.epochs * self.sampler.steps:
            raise ValueError(f"it is of step {state['step']}")
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.best, self.last_loss = state["step"], state["best"], state["last_loss"]
