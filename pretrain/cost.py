"""What a recipe will take, measured on a few random images before anything is trained."""

import time
from datetime import timedelta

import torch

from pretrain import optimizers
from pretrain.data import RESIDENT
from pretrain.learner import Learner
from pretrain.sampling import Sampler, generator
from pretrain.spec import Recipe
from pretrain.views.families import family

FEW = {"cpu": 16, "cuda": 256}  # images in a measured step


def estimate(recipe: Recipe, n: int, classes: int, size: int, device: torch.device) -> dict[str, str]:
    """For n images of size x size pixels: steps, learning rate, seconds of the computation, memory, disk; as people say them."""
    sampler = Sampler(n, recipe.batch_size, recipe.seed)
    learner = Learner(recipe, n, classes).to(device, memory_format=torch.channels_last).train()
    few = max(min(FEW.get(device.type, 64), recipe.batch_size), 2 * recipe.bn_groups)
    few -= few % recipe.bn_groups
    seconds = min(_step(recipe, learner, few, size, device) for _ in range(3)) / few
    steps, images = recipe.epochs * sampler.steps, recipe.epochs * sampler.steps * recipe.batch_size
    trained = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    state = sum(t.nbytes for t in learner.state_dict().values() if isinstance(t, torch.Tensor)) + 4 * trained
    pixels = 3 * n * size**2
    where = f"kept on the {device.type}" if pixels <= RESIDENT else "too many to keep: read from files as they are needed"
    return {
        "images": f"{n:,} of {size} px, {pixels / 1e9:.2f} GB of pixels, {where}",
        "steps": f"{steps:,} of {recipe.batch_size} images: {recipe.epochs} epochs of {sampler.steps:,}",
        "learning rate": rule(recipe),
        "encoder": f"{recipe.arch}, {recipe.stem} stem, {trained / 1e6:.1f} million parameters trained",
        "time": f"{timedelta(seconds=round(seconds * images))} on this {device.type}"
        f" ({1 / seconds:.0f} images/s, measured on {few}), without reading files",
        "disk": f"{(recipe.keep + 1) * state / 1e6:.0f} MB of checkpoints",
    }


def rule(recipe: Recipe) -> str:
    return f"{recipe.lr:g} for {recipe.lr_batch} images, so {optimizers.peak_rate(recipe):g} for {recipe.batch_size}"


def _step(recipe: Recipe, learner: Learner, few: int, size: int, device: torch.device) -> float:
    """Seconds of views, forward and backward pass."""
    draws = generator(0, "cost")
    pixels = torch.randint(256, (few, 3, size, size), generator=draws, dtype=torch.uint8).to(device)
    augment = family(recipe.views, recipe.image_size, (0.5,) * 3, (0.25,) * 3)
    positions = torch.arange(few, device=device)
    needs = {"index": positions, "labels": 0 * positions, "generator": draws}
    needs = {name: needs[name] for name in learner.objective.needs}
    started = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        views = [augment(pixels, draws).to(memory_format=torch.channels_last) for _ in range(learner.views)]
        loss, _ = learner(views, needs, draws)
    loss.backward()
    loss.item()  # the device has finished
    return time.perf_counter() - started
