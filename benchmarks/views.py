"""What random views cost against torchvision's v2 transforms, in ratios of one run.

    python benchmarks/views.py [ROUNDS] [THREADS]

Against torchvision image by image, as a DataLoader's worker does (uint8 up to the normalisation, then stacked), and against
torchvision on the whole batch, which is no substitute: all images share one crop, one flip, one colour. In each round all
contenders run in turn, and a ratio is the median over the rounds, so that a machine whose speed drifts slows all of them.
"""

import sys
from statistics import median

import torch
from timing import race
from torchvision.transforms import v2

from backbones.device import resolve_device
from pretrain.views.families import family

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = ("supervised", "ring", "moco_v2", "simclr")
SIZES = ((32, 32, 256), (256, 224, 32))  # pixels of the images and of the views, batch


def torchvision(name: str, size: int) -> v2.Compose:
    def distortion(*strengths: float) -> list[v2.Transform]:
        return [v2.RandomApply([v2.ColorJitter(*strengths)], 0.8), v2.RandomGrayscale(0.2)]

    def blur(radius: int) -> v2.Transform:
        return v2.RandomApply([v2.GaussianBlur(2 * radius + 1, (0.1, 2.0))], 0.5)

    scale, steps = {
        "supervised": ((0.08, 1), []),
        "ring": ((0.2, 1), [v2.RandomGrayscale(0.2), v2.ColorJitter(0.4, 0.4, 0.4, 0.4)]),
        "moco_v2": ((0.2, 1), [*distortion(0.4, 0.4, 0.4, 0.1), blur(6)]),
        "simclr": ((0.08, 1), [*distortion(0.8, 0.8, 0.8, 0.2), blur(size // 20)]),
    }[name]
    crop = [v2.RandomResizedCrop(size, scale), v2.RandomHorizontalFlip()]
    return v2.Compose([*crop, *steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def compare(name: str, pixels: int, size: int, n: int, rounds: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 3, pixels, pixels), dtype=torch.uint8, generator=generator)
    ours, theirs, there = family(name, size, MEAN, STD), torchvision(name, size), images.to(device)
    contenders = {
        "ours": lambda: ours(there, generator),
        "image": lambda: torch.stack([theirs(image) for image in images]).to(device),
        "batch": lambda: theirs(there),
    }
    seconds = race(contenders, rounds, device)
    per_image, per_batch = (
        median(a / b for a, b in zip(seconds[other], seconds["ours"], strict=True)) for other in ("image", "batch")
    )
    print(
        f"{pixels:>3} -> {size:>3} px   {name:<10}   {n / median(seconds['ours']):>8.0f} views/s   "
        f"{per_image:>5.2f} x torchvision per image   {per_batch:>5.2f} x torchvision per batch (shared parameters)"
    )


def main() -> None:
    arguments = [int(argument) for argument in sys.argv[1:]] + [7, 1][len(sys.argv) - 1 :]
    rounds, threads = arguments
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = resolve_device()
    print(f"{device}, {threads} CPU threads")
    for pixels, size, n in SIZES:
        for name in NAMES:
            compare(name, pixels, size, n, rounds, device)


if __name__ == "__main__":
    main()
