"""Feature extraction, end to end, against the forward pass alone and against the usual loop. Ratios of one run.

    python benchmarks/extraction.py [IMAGES]

Images are JPEG files of 500 x 375 pixels, the usual size in ImageNet; ResNet-18 at 224 px, float32. Rounds alternate between
the contenders so that a machine whose speed drifts slows all of them.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

from backbones.device import resolve_device
from backbones.trunk import FrozenBackbone, random_trunk, trunk_sha256
from imagesets import image_set as imagesets
from imagesets.pipeline import NAMED, parse
from imagesets.spec import ImagesetSpec
from transfer.features import extract

PIPELINE = parse("rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(imagenet)")
BATCH, ROUNDS = 64, 3


def make_images(folder: Path, n: int) -> None:
    """Smooth random pictures with some noise: JPEG files of a photograph's weight (about 50 kB)."""
    rng = np.random.default_rng(0)
    for i in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(coarse, np.int16) + rng.normal(0, 12, (375, 500, 3)).astype(np.int16)
        target = folder / "set" / f"class{i % 2}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(target / f"{i:06d}.jpg", quality=90)


def usual_loop(folder: Path, model: torch.nn.Module, device: torch.device) -> np.ndarray:
    steps = [v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, v2.Normalize(*NAMED["imagenet"])])
    data = torchvision.datasets.ImageFolder(folder / "set", transform)
    rows = []
    with torch.no_grad():
        for images, _ in torch.utils.data.DataLoader(data, BATCH, num_workers=2):
            rows.append(model(images.to(device)).cpu())
    return torch.cat(rows).numpy()


def main() -> None:
    n, device = int(sys.argv[1]) if len(sys.argv) > 1 else 512, resolve_device()
    trunk = random_trunk("resnet18", "imagenet", 0)
    backbone = FrozenBackbone(trunk, {"trunk_sha256": trunk_sha256(trunk)}, device=device)
    backbone = backbone.for_inputs(scale01=True, mean=PIPELINE.mean, std=PIPELINE.std)
    eager = torchvision.models.resnet18(weights=None)
    eager.fc = torch.nn.Identity()
    eager.load_state_dict(trunk.state_dict())
    eager = eager.to(device).eval()
    batch = torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8).to(device, memory_format=torch.channels_last)

    def bare() -> None:
        for start in range(0, n, BATCH):
            backbone(batch[: min(BATCH, n - start)])["pooled"].cpu()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, n)
        images = imagesets.load(ImagesetSpec(name="set", title="set", provider="folder"), folder)
        everything = np.arange(n)

        def ours(cache: str):
            return extract(backbone, PIPELINE, images, everything, ["pooled"], folder / cache)["pooled"]

        def usual():
            return usual_loop(folder, eager, device)

        difference = np.abs(ours("warm").array - usual()).max()
        seconds = {"bare forward": [], "extract": [], "usual loop": [], "cached": []}
        for round in range(ROUNDS):
            for label, run in (
                ("bare forward", bare),
                ("extract", lambda r=round: ours(f"round{r}")),
                ("usual loop", usual),
                ("cached", lambda r=round: ours(f"round{r}")),
            ):
                started = time.perf_counter()
                run()
                seconds[label].append(time.perf_counter() - started)
    bare_s, ours_s, usual_s, cached_s = (median(values) for values in seconds.values())
    print(
        f"{device}, {n} images: " + ", ".join(f"{label} {n / median(values):.1f} images/s" for label, values in seconds.items())
    )
    print(f"extract against the bare fused forward   {bare_s / ours_s:.2f} x   (target 0.92 or more)")
    print(f"extract against the usual loop           {usual_s / ours_s:.2f} x   (target 1.5 or more)")
    print(f"cached features against extracting       {ours_s / cached_s:.0f} x   (target 30 or more)")
    print(f"largest difference from the usual loop   {difference:.1e}     (target below 1e-4)")


if __name__ == "__main__":
    main()
