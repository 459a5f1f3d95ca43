"""The preprocessing string: `rgb|resize(256,bicubic)|center_crop(224)|scale01|normalize(dataset)`.

Steps are joined by `|` and run from left to right:

  colour    `rgb` or `bgr`, first. It carries the back end that decodes and resizes: `rgb` is short for `rgb(pil)`.
  geometry  any number of `resize(N[,FILTER])`: the shorter side becomes N pixels and the ratio stays,
            `resize(HxW[,FILTER])`: exactly H by W pixels, and `center_crop(N)`: N by N pixels, a smaller image padded with black.
            FILTER is bilinear (default), bicubic, nearest, lanczos or box. Sizes are rounded as torchvision rounds them.
  tensor    `scale01`: 0..255 becomes 0..1. `normalize(NUMBERS)`: (x - mean) / std for each channel, NUMBERS being `imagenet`,
            `half` (0.5 and 0.5), `dataset` (the set's own training images) or `m1,m2,m3;s1,s2,s3` in the order of the channels.

One computation has one spelling: `str(parse(text))` is what results and cache keys hold.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringbench.errors import UsageError
from ringbench.wording import nearest

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

Triple = tuple[float, float, float]

FILTERS = ("bilinear", "bicubic", "nearest", "lanczos", "box")
NAMED: dict[str, tuple[Triple, Triple]] = {  # mean and std of R, G, B in 0..1
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

_SIZE = r"([1-9]\d{0,3})"
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_THREE = ",".join([_NUMBER] * 3)
_STEPS = {  # name: (position, pattern, what a person may write)
    "rgb": (0, r"rgb(?:\(pil\))?", "rgb or rgb(pil)"),
    "bgr": (0, r"bgr(?:\(pil\))?", "bgr or bgr(pil)"),
    "resize": (
        1,
        rf"resize\({_SIZE}(?:x{_SIZE})?(?:,({'|'.join(FILTERS)}))?\)",
        f"resize(N) or resize(HxW), sizes 1..9999, and after a comma {', '.join(FILTERS)}",
    ),
    "center_crop": (1, rf"center_crop\({_SIZE}\)", "center_crop(N), N in 1..9999"),
    "scale01": (2, "scale01", "scale01 alone"),
    "normalize": (
        3,
        rf"normalize\((?:(dataset|imagenet|half)|{_THREE};{_THREE})\)",
        "normalize(dataset), normalize(imagenet), normalize(half) or normalize(m1,m2,m3;s1,s2,s3)",
    ),
}


@dataclass(frozen=True)
class Resize:
    """`size` is (shorter side,) or (height, width)."""

    size: tuple[int, ...]
    filter: str

    def __str__(self) -> str:
        return f"resize({'x'.join(map(str, self.size))},{self.filter})"

    def output(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if len(self.size) == 2 or size is None:
            return self.size if len(self.size) == 2 else None
        height, width = size
        shorter = self.size[0]
        longer = int(shorter * max(size) / min(size))
        return (longer, shorter) if width <= height else (shorter, longer)

    def apply(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        height, width = self.output((image.height, image.width))
        return image.resize((width, height), Image.Resampling[self.filter.upper()])


@dataclass(frozen=True)
class CenterCrop:
    size: int

    def __str__(self) -> str:
        return f"center_crop({self.size})"

    def output(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size, self.size

    def apply(self, image: Image.Image) -> Image.Image:
        left, top = self._start(image.width), self._start(image.height)
        return image.crop((left, top, left + self.size, top + self.size))

    def _start(self, length: int) -> int:
        # Negative where the image is smaller: PIL fills what lies outside with black. Both roundings are torchvision's.
        return round((length - self.size) / 2) if length >= self.size else -((self.size - length) // 2)


@dataclass(frozen=True)
class Pipeline:
    """A parsed preprocessing string; `parse` makes it.

    `mean` and `std` are in the order of the channels and in the units of the step before: 0..1 after scale01, else 0..255.
    They are None where nothing is normalised, or where `needs_statistics` says that `resolve` must fill them in.
    """

    colour: str
    geometry: tuple[Resize | CenterCrop, ...] = ()
    scale01: bool = False
    needs_statistics: bool = False
    mean: Triple | None = None
    std: Triple | None = None

    def __str__(self) -> str:
        steps = [f"{self.colour}(pil)", *map(str, self.geometry)]
        if self.scale01:
            steps.append("scale01")
        if self.needs_statistics:
            steps.append("normalize(dataset)")
        elif self.mean is not None:
            steps.append(f"normalize({self._numbers()})")
        return "|".join(steps)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every prepared image, or None where they depend on the image."""
        size = None
        for step in self.geometry:
            size = step.output(size)
        return size

    def resolve(self, mean: Triple, std: Triple) -> Pipeline:
        """Fill `normalize(dataset)` in with a set's channel statistics: R, G, B in 0..1. Any other pipeline stays as it is.

        Raises UsageError where a channel does not vary.
        """
        if not self.needs_statistics:
            return self
        try:
            return replace(self, needs_statistics=False)._normalised(self._ordered(mean), self._ordered(std))
        except ValueError as problem:
            raise UsageError(f"pipeline '{self}' cannot use the statistics of this set: {problem}") from None

    def with_geometry(self, text: str | None) -> Pipeline:
        """This pipeline with the geometric steps of `text` in place of its own; None changes nothing."""
        if text is None:
            return self
        other = parse(f"rgb|{text}")
        if other != Pipeline("rgb", other.geometry):
            raise UsageError(f"geometry '{text}' may hold resize and center_crop only")
        return replace(self, geometry=other.geometry)

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """uint8 H x W x 3 RGB -> a new uint8 H' x W' x 3 array, contiguous, in this pipeline's channel order."""
        import numpy as np
        from PIL import Image

        if self.geometry:
            image = Image.fromarray(image)
            for step in self.geometry:
                image = step.apply(image)
        pixels = np.array(image, order="C")
        return pixels if self.colour == "rgb" else np.ascontiguousarray(pixels[..., ::-1])

    def _ordered(self, rgb: Triple) -> Triple:
        return tuple(rgb) if self.colour == "rgb" else tuple(rgb)[::-1]

    def _normalised(self, mean: Iterable[float], std: Iterable[float]) -> Pipeline:
        """Numbers as they are printed, to six decimals; those in the wrong units, a silent mistake, are refused."""
        mean, std = (tuple(round(x, 6) + 0.0 for x in triple) for triple in (mean, std))  # + 0.0 makes -0.0 a 0.0
        top, least, when = (1, 1e-6, "after") if self.scale01 else (255, 1, "without")
        if not all(0 <= x <= top for x in mean):
            raise ValueError(f"means {mean} must lie in 0..{top} {when} scale01")
        if not all(least <= x <= top for x in std):
            raise ValueError(f"standard deviations {std} must lie in {least:g}..{top} {when} scale01")
        return replace(self, mean=mean, std=std)

    def _numbers(self) -> str:
        for name, (mean, std) in NAMED.items():
            if (self.mean, self.std) == (self._ordered(mean), self._ordered(std)):
                return name
        return ";".join(",".join(f"{x:.6f}".rstrip("0").rstrip(".") for x in triple) for triple in (self.mean, self.std))


def parse(text: str) -> Pipeline:
    """Read a preprocessing string. Raises UsageError that names the wrong step and what is allowed there."""
    steps = re.sub(r"\s*([|(),;])\s*", r"\1", text.strip()).split("|")
    try:
        names = [_name(step) for step in steps]
        _check_order(names)
        pipeline = Pipeline(names[0])
        for name, step in zip(names, steps, strict=True):
            pipeline = _add(pipeline, name, step)
    except ValueError as problem:
        raise UsageError(f"pipeline '{text}': {problem}") from None
    return pipeline


def _name(step: str) -> str:
    name = step.split("(")[0]
    if name not in _STEPS:
        raise ValueError(f"unknown step '{step}'{nearest(name, _STEPS)}")
    return name


def _check_order(names: list[str]) -> None:
    positions = [_STEPS[name][0] for name in names]
    if positions[0] != 0:
        raise ValueError(f"it starts with '{names[0]}'; the first step must be the colour, rgb or bgr")
    for (before, name), (earlier, later) in zip(itertools.pairwise(names), itertools.pairwise(positions), strict=True):
        if later < earlier or later == earlier != 1:
            raise ValueError(f"step '{name}' cannot follow '{before}'; the order is colour, geometry, scale01, normalize")


def _add(pipeline: Pipeline, name: str, step: str) -> Pipeline:
    _, pattern, usage = _STEPS[name]
    match = re.fullmatch(pattern, step, re.ASCII)
    if match is None:
        last = re.split(r"[(,)]", step.rstrip(")"))[-1]
        raise ValueError(f"step '{step}' must be {usage}{nearest(last, (*FILTERS, *NAMED, 'dataset'))}")
    if name == "resize":
        sizes = tuple(int(size) for size in match.groups()[:2] if size)
        return replace(pipeline, geometry=(*pipeline.geometry, Resize(sizes, match[3] or FILTERS[0])))
    if name == "center_crop":
        return replace(pipeline, geometry=(*pipeline.geometry, CenterCrop(int(match[1]))))
    if name == "scale01":
        return replace(pipeline, scale01=True)
    if name == "normalize":
        return _normalize(pipeline, *match.groups())
    return pipeline


def _normalize(pipeline: Pipeline, name: str | None, *numbers: str) -> Pipeline:
    if name is None:
        return pipeline._normalised(map(float, numbers[:3]), map(float, numbers[3:]))
    if not pipeline.scale01:
        raise ValueError(f"normalize({name}) is meant for 0..1; put scale01 before it")
    if name == "dataset":
        return replace(pipeline, needs_statistics=True)
    return pipeline._normalised(*map(pipeline._ordered, NAMED[name]))
