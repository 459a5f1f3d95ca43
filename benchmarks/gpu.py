"""Training on a GPU: images/s against the encoder's bare passes, memory, the ring's share, the Triton kernels against torch.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --tiny     that it works, on any machine; its numbers mean nothing

Steps are those of `pretrain.trainer`, reading included: 32 px from the device's memory; 224 px from JPEG files, which the device
decodes. Times are the minimum over interleaved rounds of several steps.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from extraction import make_images
from timing import least, race
from training import METHODS, bare, random_set, ring, step, trainer

from imagesets import image_set
from imagesets.spec import ImagesetSpec
from pretrain import similarity
from pretrain.negatives import Ring
from pretrain.similarity import unit

NEEDS_A_GPU = 3  # exit code


def images_per_second(method: str, images, device: torch.device, steps: int, target: float, **changes: object) -> None:
    it = trainer(method, images, device, **changes)
    steps, once = min(steps, it.sampler.steps), bare(it)

    def passes() -> None:
        for _ in range(steps):
            once()

    contenders = {"step": step(it, steps), "bare": passes}
    if method.endswith("ring"):
        contenders["ring"], contenders["base"] = ring(it)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    t = least(race(contenders, 3, device))
    done = steps * it.recipe.batch_size
    line = f"{it.recipe.image_size:>3} px {method:<9} {done / t['step']:7.0f} images/s, {t['bare'] / t['step']:4.2f} of the bare"
    line += f" passes' (target {target} or more), stalled {100 * it.data.waited / (4 * t['step']):.0f} %"
    if device.type == "cuda":
        line += f", peak memory {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB"
    if "ring" in t:
        line += f", the ring's share {100 * steps * (t['ring'] - t['base']) / t['step']:.1f} % (target 5 or less)"
    print(line, flush=True)


def kernels(device: torch.device, B: int, n: int) -> None:
    """Value and gradient of the ring's log-sum-exp in blocks of torch, and by the Triton kernels."""
    z, v = (unit(torch.randn(rows, 128, device=device)) for rows in (B, n))
    for window in ((0, 100), (45, 94.5), (90, 99)):
        negatives = Ring(*window)
        paths = {"torch": similarity._in_blocks}
        if similarity.streams(z):
            from pretrain import streaming

            paths["Triton"] = streaming.log_sum_exp
        runs = {name: partial(path, z, v, 0.07, negatives, True) for name, path in paths.items()}
        t = least(race(runs, 10, device))
        line = f"log-sum-exp, {B} anchors, {n} candidates, ring {window}: torch {1e3 * t['torch']:.2f} ms"
        if "Triton" in paths:
            torch.testing.assert_close(runs["Triton"](), runs["torch"](), rtol=1e-4, atol=1e-4)
            line += f", Triton {1e3 * t['Triton']:.2f} ms ({t['torch'] / t['Triton']:.2f} x)"
            for name, run in runs.items():
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                run()
                line += f", {name} {(torch.cuda.max_memory_allocated(device) - before) / 1e6:.0f} MB"
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few small images")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("this benchmark needs a CUDA device; `--device cpu --tiny` tries whether it works", file=sys.stderr)
        return NEEDS_A_GPU
    tiny = asked.tiny
    print(torch.cuda.get_device_name(device) if device.type == "cuda" else device, flush=True)
    kernels(device, *(8, 512) if tiny else (256, 65_536))
    small = random_set(*(64, 16) if tiny else (50_000, 32))
    batch, steps = (8, 2) if tiny else (512, 20)
    for method in METHODS:
        images_per_second(method, small, device, steps, 0.9, stem="cifar", batch_size=batch)
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), 16 if tiny else 4096)
        files = image_set.load(ImagesetSpec(name="set", title="set", provider="folder"), Path(folder))
        size = {"image_size": 64, "resize": 64} if tiny else {"image_size": 224, "resize": 256}
        for method in ("ir", "mocoring"):
            images_per_second(method, files, device, steps, 0.85, batch_size=8 if tiny else 256, resident=0, **size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
