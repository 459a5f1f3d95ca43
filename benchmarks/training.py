"""Whole training steps on small images: against the encoder's bare passes, against lightly's loops, and the ring's share.

    python benchmarks/training.py [ROUNDS] [BATCH]

The bare passes are those of the same encoder on views that are there already, forward and backward, and MoCo's forward pass of
the keys. lightly's loops are those of its documentation (its transforms, loss and memory bank, a DataLoader) with our encoder.
In each round all contenders run in turn; a time is the minimum over the rounds, which other load on the machine spoils least.
"""

import sys
import tempfile
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from timing import least, race
from torch import Tensor, nn

from imagesets.image_set import ImageSet
from imagesets.spec import ImagesetSpec
from pretrain import encoder
from pretrain import recipe as recipes
from pretrain.data import RESIDENT
from pretrain.negatives import Uniform
from pretrain.sampling import generator
from pretrain.trainer import Surroundings, Trainer

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
METHODS = ("ir", "iring", "moco", "mocoring", "simclr")
STEPS = 4  # in a round, where a DataLoader has to start its workers
WORKERS = 2


def random_set(n: int, size: int) -> ImageSet:
    """n training images of noise, as arrays."""
    pixels = np.random.default_rng(0).integers(256, size=(n, size, size, 3), dtype=np.uint8)
    splits = {"train": np.arange(n - n // 10), "val": np.arange(n - n // 10, n), "test": np.arange(0)}
    spec = ImagesetSpec(name="noise", title="noise", provider="folder")
    labels = np.arange(n, dtype=np.int64) % 10
    return ImageSet(spec, [str(c) for c in range(10)], labels, None, [f"train/{i}" for i in range(n)], splits, [], images=pixels)


def trainer(method: str, images: ImageSet, device: torch.device, resident: int = RESIDENT, **changes: object) -> Trainer:
    """The recipe of a method with its ring closed, at the size of the images."""
    size = images.images.shape[1] if images.images is not None else 224
    changes = {"image_size": size, "resize": size, "knn_every": 0, "warmup_epochs": 0} | changes
    if method.endswith("ring"):
        changes["negatives.annealing"] = "constant"
    recipe = recipes.load(f"{method}_cifar10", [f"{key}={value}" for key, value in changes.items()])
    out = Path(tempfile.mkdtemp())
    return Trainer(recipe, images, MEAN, STD, Surroundings(out, device, resident=resident))


def step(it: Trainer, batches: int = 1) -> Callable[[], None]:
    """Training steps as `Trainer.run` makes them, one epoch after the other, without its looks at the loss."""
    order = (it.trained[batch] for epoch in count() for batch in it.sampler.rest_of(epoch))

    def run() -> None:
        for positions, pixels in it.data.batches(islice(order, batches)):
            it.train_step(positions, pixels)
        it.losses.clear()

    return run


def bare(it: Trainer) -> Callable[[], None]:
    """The passes of one step through the encoder, on views made beforehand."""
    learner, recipe = it.learner, it.recipe
    shape = (recipe.batch_size, 3, recipe.image_size, recipe.image_size)
    once = torch.randn(shape, device=it.around.device).contiguous(memory_format=torch.channels_last)
    views = once if learner.ema is not None or learner.views == 1 else torch.cat([once, once])

    def run() -> None:
        with it.autocast():
            z = learner.encoder(views)[0]
            if learner.ema is not None:
                learner.ema(views)
        z.float().square().mean().backward()
        it.optimizer.zero_grad()

    return run


def ring(it: Trainer) -> tuple[Callable[[], None], Callable[[], None]]:
    """Loss and gradient of the objective with its ring, and without: the same embeddings, the same memory."""
    objective, b = it.learner.objective, it.recipe.batch_size
    z = [torch.randn(b, it.recipe.dim, device=it.around.device, requires_grad=True) for _ in objective.embeddings]

    def loss(negatives: nn.Module) -> Callable[[], None]:
        def run() -> None:
            needs = {"index": torch.arange(b, device=it.around.device), "generator": generator(0, "benchmark")}
            closed, objective.negatives = objective.negatives, negatives
            objective(*z, **{name: needs[name] for name in objective.needs}).backward()
            objective.negatives = closed

        return run

    return loss(objective.negatives), loss(Uniform())


def lightly_loop(method: str, it: Trainer) -> Callable[[], None]:
    """MoCo or SimCLR as https://docs.lightly.ai/self-supervised-learning/examples writes them for CIFAR-10."""
    from lightly.loss import NTXentLoss
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms import MoCoV2Transform, SimCLRTransform
    from PIL import Image

    recipe, pixels = it.recipe, it.images.images
    model = encoder.make(recipe)
    slow = encoder.make(recipe) if method == "moco" else None
    kind = MoCoV2Transform if method == "moco" else SimCLRTransform
    transform = kind(input_size=recipe.image_size, gaussian_blur=0.0)
    bank = (recipe.settings["size"], recipe.dim) if method == "moco" else 0
    criterion = NTXentLoss(recipe.settings["temperature"], memory_bank_size=bank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    if slow:
        deactivate_requires_grad(slow)

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, i: int) -> list[Tensor]:
            return transform(Image.fromarray(pixels[i]))

    loader = torch.utils.data.DataLoader(Data(), recipe.batch_size, shuffle=True, drop_last=True, num_workers=WORKERS)

    def run() -> None:
        for x0, x1 in islice(loader, STEPS):
            if slow:
                update_momentum(model, slow, m=0.99)
            z0 = model(x0)[0]
            z1 = slow(x1)[0].detach() if slow else model(x1)[0]
            criterion(z0, z1).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def overheads(images: ImageSet, stem: str, batch: int, rounds: int, device: torch.device) -> None:
    for method in METHODS:
        it = trainer(method, images, device, stem=stem, batch_size=batch)
        contenders = {"step": step(it), "bare": bare(it)}
        if method.endswith("ring"):
            contenders["ring"], contenders["base"] = ring(it)
        t = least(race(contenders, rounds, device))
        line = f"{images.images.shape[1]:>3} px, stem {stem:<9} {method:<9} {batch / t['step']:6.0f} images/s"
        line += f"   step / bare passes {t['step'] / t['bare']:4.2f} x (target 1.10 or less)"
        if "ring" in t:
            line += f"   the ring's share {100 * (t['ring'] - t['base']) / t['step']:4.1f} % (target 5 or less)"
        print(line, flush=True)


def against_lightly(images: ImageSet, stem: str, batch: int, rounds: int, device: torch.device) -> None:
    common = {"stem": stem, "batch_size": batch, "bn_groups": 1, "head": "mlp", "optimizer": "sgd"}
    special = {"moco": {"views": "moco_v2-blur", "settings.size": 4096}, "simclr": {"views": "simclr_cifar"}}
    for method, changes in special.items():
        it = trainer(method, images, device, **common, **changes)
        t = least(race({"ours": step(it, STEPS), "lightly's": lightly_loop(method, it)}, rounds, device))
        each = ", ".join(f"{name} {STEPS * batch / seconds:.0f} images/s" for name, seconds in t.items())
        ratio = t["lightly's"] / t["ours"]
        print(f" 32 px, stem {stem:<9} {method:<9} {each}: {ratio:4.2f} x (target 1.3 or more)", flush=True)


def main() -> None:
    rounds, batch = [int(argument) for argument in sys.argv[1:]] + [3, 256][len(sys.argv) - 1 :]
    device = torch.device("cpu")
    print(f"{device}, {torch.get_num_threads()} threads, ResNet-18, batch {batch}", flush=True)
    small = random_set(50_000, 32)
    for stem in ("cifar_s2", "cifar"):
        against_lightly(small, stem, batch, rounds, device)
        overheads(small, stem, batch, rounds, device)
    overheads(random_set(4096, 224), "imagenet", batch, rounds, device)


if __name__ == "__main__":
    main()
