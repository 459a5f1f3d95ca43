"""Shapes that are drawn here, the same bytes everywhere: scenes with boxes, masks and keypoints, and single shapes to classify.

Scenes are written once, in COCO's layout, below BENCH_HOME/cache/shapes; single shapes are drawn anew in memory. An image is a
function of its split and its number alone. Colours say nothing about the class, shapes do not overlap, and they are turned by
at most 25 degrees, so that the corners keep their names.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagesets.providers import coco
from imagesets.providers.source import Boxes, Source
from imagesets.spec import ImagesetSpec, KeypointSpec, Part
from ringbench import places

if TYPE_CHECKING:
    import numpy as np

VERSION = 1  # of the drawings; the scenes of another are other files
SCENES = {"train": 200, "test": 40}
SINGLES = {"train": 2400, "test": 600}
SINGLE = 64  # edge of the image of a single shape, pixels
UNIT = 16  # parts of a pixel in which corners are whole numbers, so that no machine rounds another way

# Corners clockwise, x to the right and y down, in units of the shape's size.
OUTLINES = {
    "disc": [(math.cos(math.tau * i / 24), math.sin(math.tau * i / 24)) for i in range(24)],
    "triangle": [(0, -1), (0.95, 0.8), (-0.95, 0.8)],
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "arrow": [(0, -1), (0.95, 0), (0.42, 0), (0.42, 1), (-0.42, 1), (-0.42, 0), (-0.95, 0)],
}
CLASSES = list(OUTLINES)
CORNERS = {  # of each class, which corner is which keypoint
    "disc": {},
    "triangle": {"top": 0, "lower_left": 2, "lower_right": 1},
    "square": {"upper_left": 0, "upper_right": 1, "lower_left": 3, "lower_right": 2},
    "arrow": {"top": 0, "upper_left": 6, "upper_right": 1, "lower_left": 4, "lower_right": 3},
}
KEYPOINTS = KeypointSpec(
    names=["top", "upper_left", "upper_right", "lower_left", "lower_right"],
    flip_pairs=[["upper_left", "upper_right"], ["lower_left", "lower_right"]],
    sigmas=[0.07] * 5,  # as wide as COCO's for shoulders
)


def missing(spec: ImagesetSpec, root: Path) -> None:
    return None


def load(spec: ImagesetSpec, root: Path) -> Source:
    """Single shapes, SINGLE x SINGLE: for training an encoder that has seen shapes but no scene."""
    import numpy as np

    images, labels, keys, official = [], [], [], []
    for split, number in SINGLES.items():
        for i in range(number):
            random = _random("single", split, i)
            canvas, free = _background(random, SINGLE, SINGLE)
            label = i % len(CLASSES)
            while not _place(random, canvas, free, CLASSES[label], sizes=(14, 27)):
                pass
            images.append(canvas)
            labels.append(label)
            keys.append(f"{split}/{i:05d}")
            official.append(split)
    return Source(CLASSES, keys, labels, official, images=np.stack(images))


def boxes(spec: ImagesetSpec, root: Path) -> Boxes:
    folder = places.cache() / "shapes" / f"v{VERSION}"
    if not folder.exists():
        write(folder)
    parts = {split: [Part(annotations=f"{split}.json", images=split)] for split in SCENES}
    found = coco.boxes(spec.model_copy(update={**parts, "keypoints": KEYPOINTS}), folder)
    return Boxes(found.splits, folder, keypoints=KEYPOINTS)


def write(folder: Path) -> None:
    """Draw all scenes into `folder`, which is whole or absent whatever happens meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        whole = Path(temporary) / "whole"
        for split, number in SCENES.items():
            _write_split(whole, split, number)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster, with the same bytes
                raise


def _write_split(folder: Path, split: str, number: int) -> None:
    from PIL import Image

    (folder / split).mkdir(parents=True)
    categories = [{"id": i, "name": name, "keypoints": KEYPOINTS.names, "skeleton": []} for i, name in enumerate(CLASSES, 1)]
    document: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
    for i in range(number):
        canvas, annotations = scene(split, i)
        name = f"{i:05d}.bmp"  # what a PNG holds depends on who compressed it
        Image.fromarray(canvas).save(folder / split / name)
        height, width = canvas.shape[:2]
        document["images"].append({"id": i + 1, "file_name": name, "height": height, "width": width})
        for annotation in annotations:
            number_of_it = len(document["annotations"]) + 1
            document["annotations"].append({"id": number_of_it, "image_id": i + 1, "iscrowd": 0, **annotation})
    (folder / f"{split}.json").write_text(json.dumps(document), encoding="utf-8")


def scene(split: str, i: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """uint8 H x W x 3 and one to four annotations, whose masks do not overlap."""
    random = _random("scene", split, i)
    height, width = (int(edge) for edge in random.choice([96, 112, 128, 144, 160], 2))
    canvas, free = _background(random, height, width)
    wanted, annotations = random.randint(1, 5), []
    while not annotations:  # ten tries for each; the first always finds its place
        for _ in range(10 * wanted):
            name = CLASSES[random.randint(len(CLASSES))]
            if len(annotations) < wanted and (annotation := _place(random, canvas, free, name, sizes=(12, 30))):
                annotations.append(annotation)
    return canvas, annotations


def _random(kind: str, split: str, i: int) -> np.random.RandomState:
    """numpy promises the stream of RandomState, and of no other, to stay as it is."""
    import numpy as np

    return np.random.RandomState([VERSION, ["scene", "single"].index(kind), list(SCENES).index(split), i])


def _background(random: np.random.RandomState, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A noisy gradient between two colours, and where it is still free (all of it)."""
    import numpy as np

    first, second = random.randint(40, 216, (2, 1, 1, 3))
    y, x = np.mgrid[:height, :width][..., None]
    down, right = random.randint(0, 2, 2)
    way = (y if down else height - y) + (x if right else width - x)
    canvas = first + (second - first) * way // (height + width) + random.randint(-12, 13, (height, width, 3))
    return canvas.clip(0, 255).astype(np.uint8), np.ones((height, width), bool)


def _place(
    random: np.random.RandomState, canvas: np.ndarray, free: np.ndarray, name: str, sizes: tuple[int, int]
) -> dict[str, Any] | None:
    """Draw a shape at a random place into `canvas` and `free`, and annotate it; None where the place is taken or outside."""
    import numpy as np

    height, width = free.shape
    size, turn, stretch = random.randint(*sizes), math.radians(random.randint(-25, 26)), random.randint(80, 121) / 100
    centre, colour = (random.randint(size, edge - size + 1) for edge in (width, height)), random.randint(0, 256, 3)
    x, y = (np.array(axis) for axis in zip(*OUTLINES[name], strict=True))
    x, y = size * stretch * x, size * y
    x, y = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
    corners = np.stack([np.rint((c + offset) * UNIT).astype(np.int64) for c, offset in zip((x, y), centre, strict=True)], 1)
    mask = _inside(corners, height, width)
    outside = corners.min() < 0 or (corners >= np.array([width, height]) * UNIT).any()
    if outside or not free[mask].all() or np.abs(canvas[mask].mean(0) - colour).max() < 60:
        return None
    canvas[mask] = (colour + random.randint(-12, 13, (mask.sum(), 3))).clip(0, 255)
    free[mask] = False
    points = (corners / UNIT).tolist()
    (left, top), (right, bottom) = np.min(points, 0).tolist(), np.max(points, 0).tolist()
    seen = {key: [*(corners[corner] // UNIT).tolist(), 2] for key, corner in CORNERS[name].items()}
    return {
        "category_id": CLASSES.index(name) + 1,
        "bbox": [left, top, right - left, bottom - top],
        "area": int(mask.sum()),
        "segmentation": [[coordinate for point in points for coordinate in point]],
        "keypoints": [value for key in KEYPOINTS.names for value in seen.get(key, [0, 0, 0])],
        "num_keypoints": len(seen),
    }


def _inside(corners: np.ndarray, height: int, width: int) -> np.ndarray:
    """bool (height, width): pixels whose centre lies in the polygon, by the even-odd rule in whole numbers."""
    import numpy as np

    left, top = (int(edge) for edge in (corners.min(0) // UNIT).clip(0))
    right, bottom = (int(edge) for edge in corners.max(0) // UNIT + 1)
    whole = np.zeros((height, width), bool)
    inside = whole[top:bottom, left:right]
    y, x = np.mgrid[top : top + inside.shape[0], left : left + inside.shape[1]] * UNIT + UNIT // 2
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, 0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        inside ^= crosses & (((x1 - x0) * (y - y0) - (x - x0) * (y1 - y0) > 0) == (y1 > y0))
    return whole
