"""Augmentation families by name: what an objective takes for two views of one image.

A name may be changed: `-blur` and `-colour` leave a part out, `+cutout`, `+rotation` and `+noise` add one, as in
`simclr-colour+cutout`.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.views.ablations import Cutout, Noise, Rotation
from pretrain.views.blur import Blur
from pretrain.views.colour import Grayscale, Jitter, Normalise
from pretrain.views.crop import CropAndFlip
from pretrain.views.lab import Lab
from pretrain.views.step import Parameters, Sometimes, Step
from ringbench.errors import UsageError
from ringbench.wording import nearest

Triple = tuple[float, float, float]
PARTS = {"blur": (Blur,), "colour": (Jitter, Grayscale)}  # colour distortion in SimCLR's words


def ring(size: int) -> tuple[Step, ...]:
    """The Ring paper's, which is that of instance discrimination and MoCo v1; images resized to 256 for views of 224."""
    return CropAndFlip(size, (0.2, 1)), Sometimes(0.2, Grayscale()), Jitter(0.4, 0.4, 0.4, 0.4)


def moco_v2(size: int) -> tuple[Step, ...]:
    """Chen et al. 2020, "Improved Baselines with Momentum Contrastive Learning". PIL's blur there has no window: 3 sigma here."""
    colour = Sometimes(0.8, Jitter(0.4, 0.4, 0.4, 0.1)), Sometimes(0.2, Grayscale())
    return CropAndFlip(size, (0.2, 1)), *colour, Sometimes(0.5, Blur(radius=6))


def simclr(size: int, strength: float = 1) -> tuple[Step, ...]:
    """Chen et al. 2020, "A Simple Framework for Contrastive Learning", appendix A. The blur's window is a tenth of the image."""
    jitter = Jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    colour = Sometimes(0.8, jitter), Sometimes(0.2, Grayscale())
    return CropAndFlip(size, (0.08, 1)), *colour, Sometimes(0.5, Blur(radius=size // 20))


def simclr_cifar(size: int) -> tuple[Step, ...]:
    """SimCLR's for CIFAR-10, appendix B.9: half the colour distortion, no blur."""
    return simclr(size, strength=0.5)[:-1]


def cmc(size: int) -> tuple[Step, ...]:
    """Tian et al. 2020: the views are the lightness L, channel 0, and the colours ab, channels 1 and 2, of one crop."""
    return (CropAndFlip(size, (0.2, 1)),)


def supervised(size: int) -> tuple[Step, ...]:
    """Szegedy et al. 2015: what networks are trained with on labels."""
    return (CropAndFlip(size, (0.08, 1)),)


def characters(size: int) -> tuple[Step, ...]:
    """No paper's: for written signs, of which no mirror image and no small part is the same sign."""
    return CropAndFlip(size, (0.5, 1), flip=0), Jitter(0.4, 0.4, 0, 0)


FAMILIES = {family.__name__: family for family in (ring, moco_v2, simclr, simclr_cifar, cmc, supervised, characters)}


@dataclass(frozen=True)
class Views:
    """One random view of each image. Calling it is `draw`, then `apply`; its repr says all there is to know about it."""

    size: int
    steps: tuple[Step, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 RGB images (n, 3, H, W) on any device, a generator on the CPU -> float (n, 3, size, size), normalised."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            found = f"{images.dtype} of shape {tuple(images.shape)}"
            raise UsageError(f"views are made of uint8 images of shape (n, 3, height, width), found {found}")
        return self.apply(images, self.draw(images.shape, generator))

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> list[Parameters]:
        """The parameters of each step for images of the shape (n, 3, H, W)."""
        shapes = [shape] + [(shape[0], 3, self.size, self.size)] * (len(self.steps) - 1)
        return [step.draw(shape, generator) for step, shape in zip(self.steps, shapes, strict=True)]

    def apply(self, images: Tensor, parameters: list[Parameters]) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):  # half precision is coarser than the eight bits of a pixel
            x = images
            for step, drawn in zip(self.steps, parameters, strict=True):
                x = step.apply(x, drawn)
        return x


def family(name: str, size: int, mean: Triple, std: Triple) -> Views:
    """The family of that name for views of size x size pixels, normalised with mean and std of R, G, B in 0..1.

    `cmc` has a normalisation of its own. Raises UsageError for an unknown name.
    """
    base, *changes = re.split("(?=[+-])", name)
    if base not in FAMILIES:
        raise UsageError(f"unknown views '{name}'{nearest(base, FAMILIES)}")
    if size < 8:
        raise UsageError(f"views must have 8 x 8 pixels or more, found {size}")
    steps = FAMILIES[base](size)
    added = {"cutout": Cutout(tuple(mean)), "rotation": Rotation(), "noise": Noise()}
    for change in changes:
        sign, part = change[0], change[1:]
        known = added if sign == "+" else PARTS
        if part not in known:
            raise UsageError(f"views '{name}': unknown part '{part}' after '{sign}'{nearest(part, known)}")
        steps = (*steps, added[part]) if sign == "+" else _without(steps, PARTS[part], name)
    return Views(size, (*steps, Lab() if base == "cmc" else Normalise(tuple(mean), tuple(std))))


def _without(steps: tuple[Step, ...], kinds: tuple[type[Step], ...], name: str) -> tuple[Step, ...]:
    kept = tuple(step for step in steps if not isinstance(getattr(step, "step", step), kinds))
    if kept == steps:
        raise UsageError(f"views '{name}' leave out what is not there; take it out of the name")
    return kept
