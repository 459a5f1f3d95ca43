"""Ground truth beside predictions, as pictures."""

import colorsys
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from imagesets import annotated, masks
from imagesets.annotated import AnnotatedSet
from imagesets.decode import decode
from imagesets.spec import ImagesetSpec
from imagesets.validation import numbers
from ringbench.errors import RingbenchError, Unavailable
from ringbench.files import atomic_path
from transfer.detection import predictions

SHORTER = 480  # pixels that the shorter edge of an image has at least, so that labels can be read,
LONGER = 1600  # where the longer one then has no more than so many
GAP, HEADING, TEXT, LINE, DOT = 12, 30, 14, 2, 3  # pixels
OPACITY = 0.45  # of masks
INK, PAPER = (40, 40, 40), (250, 250, 250)
Record = dict[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom in the picture


def command(imageset: ImagesetSpec, data: Path, file: Path, out: Path, *, n: int, score: float) -> None:
    """Write pictures of `n` test images, spread evenly over those with an object, and print their paths.

    `file` holds COCO results, those below `score` are left out. Raises Unavailable where it cannot be read,
    RingbenchError where it holds something else.
    """
    images, found = annotated.load(imageset, data), _read(file)
    split = images.splits["test"]
    _check(images, found, file)
    truths = _by_image(split.annotations)
    with_objects = [image for image in split.images if image["id"] in truths]
    chosen = np.unique(np.linspace(0, len(with_objects) - 1, n).round().astype(int))
    shown = _by_image([p for p in found if p["score"] >= score])
    stems = Counter(Path(image["file_name"]).stem for image in split.images)
    for image in (with_objects[i] for i in chosen):
        stem = Path(image["file_name"]).stem
        path = out / (f"{stem}.png" if stems[stem] == 1 else f"{stem}-{image['id']}.png")
        picture = side_by_side(images, image, truths[image["id"]], shown[image["id"]], f"predicted, score at least {score:g}")
        with atomic_path(path) as temporary:
            picture.save(temporary, "PNG")
        print(path)


def _check(images: AnnotatedSet, found: list[Record], path: Path) -> None:
    """Raises RingbenchError for predictions that are not of this set, or cannot be drawn."""
    split = images.splits["test"]
    sizes = {image["id"]: (image["height"], image["width"]) for image in split.images}
    try:
        predictions.results({"images": split.images, "categories": split.categories}, found, "bbox", None)
    except RingbenchError as error:
        raise RingbenchError(f"{path} does not fit '{images.spec.name}': {error}") from None
    for prediction in found:
        shape, points = prediction.get("segmentation"), prediction.get("keypoints", [])
        if shape is not None and masks.is_broken(shape, *sizes[prediction["image_id"]]):
            raise RingbenchError(f"{path}: a mask of image {prediction['image_id']} is broken, or of another size than the image")
        if not isinstance(points, list) or len(points) % 3 or numbers(points, len(points)) is None:
            raise RingbenchError(f"{path}: keypoints of image {prediction['image_id']} are not x, y, v for each")
        if numbers(prediction["bbox"], 4) is None:
            raise RingbenchError(f"{path}: the box {prediction['bbox']} of image {prediction['image_id']} lies nowhere near it")


def side_by_side(images: AnnotatedSet, image: Record, truths: list[Record], found: list[Record], heading: str) -> Image.Image:
    """An image twice: with its objects, and with what was found."""
    edges = image["height"], image["width"]
    scale = min(max(1.0, SHORTER / min(edges)), LONGER / max(edges))
    height, width = (max(1, round(edge * scale)) for edge in edges)
    picture = Image.new("RGB", (2 * width + 3 * GAP, height + HEADING + GAP), PAPER)
    font = ImageFont.load_default(TEXT)
    for column, (records, words) in enumerate(((truths, "annotated"), (found, heading))):
        left = GAP + column * (width + GAP)
        ImageDraw.Draw(picture).text((left, HEADING / 2), f"{words}: {len(records)}", INK, font, anchor="lm")
        picture.paste(_drawn(images, image, records, scale, (width, height)), (left, HEADING))
    return picture


def _drawn(images: AnnotatedSet, image: Record, records: list[Record], scale: float, size: tuple[int, int]) -> Image.Image:
    canvas = Image.fromarray(decode(image["file_name"])).resize(size, Image.Resampling.BICUBIC)
    names = dict(zip(images.category_ids, images.classes, strict=True))
    colours = {key: _colour(place) for place, key in enumerate(names)}
    records = sorted(records, key=lambda record: -record["bbox"][2] * record["bbox"][3])  # no large thing hides a small one
    for record in records:
        if segmentation := record.get("segmentation"):
            mask = Image.fromarray(masks.pixels(segmentation, image["height"], image["width"])).convert("L")
            mask = mask.point(lambda level: round(level * OPACITY)).resize(canvas.size)
            canvas.paste(colours[record["category_id"]], mask=mask)
    pen = ImageDraw.Draw(canvas)
    for record in records:
        pen.rectangle(_corners(record["bbox"], scale), outline=colours[record["category_id"]], width=LINE)
    taken: list[Box] = []
    for record in sorted(records, key=lambda record: -record.get("score", 1)):
        name = names[record["category_id"]] if len(names) > 1 else ""
        _label(pen, record, name, colours[record["category_id"]], scale, canvas.size, taken)
    for record in records:
        for x, y, visible in zip(*[iter(record.get("keypoints", ()))] * 3, strict=True):
            if visible > 0:
                x, y = (x + 0.5) * scale, (y + 0.5) * scale
                pen.ellipse((x - DOT, y - DOT, x + DOT, y + DOT), fill=colours[record["category_id"]], outline="white")
    return canvas


def _label(
    pen: ImageDraw.ImageDraw,
    record: Record,
    name: str,
    colour: tuple[int, int, int],
    scale: float,
    size: tuple[int, int],
    taken: list[Box],
) -> None:
    """Above the upper left corner of the box, or inside where the image ends; never over the label of a better one."""
    words = f"{name} {record['score']:.2f}" if "score" in record else name
    words = (words + " crowd" * bool(record.get("iscrowd")) + " difficult" * bool(record.get("difficult"))).strip()
    font = ImageFont.load_default(TEXT)
    width, height = font.getlength(words) + 6, TEXT + 3
    x, y, _, _ = _corners(record["bbox"], scale)
    x, y = max(0, min(x, size[0] - width)), y - height if y >= height else max(0, y)
    place = x, y, x + width, y + height
    if not words or any(x < right and left < place[2] and y < bottom and top < place[3] for left, top, right, bottom in taken):
        return
    taken.append(place)
    pen.rectangle(place, fill=colour)
    dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140
    pen.text((x + 3, y + height / 2), words, INK if dark else "white", font, anchor="lm")


def _corners(box: list[float], scale: float) -> Box:
    x, y, width, height = (value * scale for value in box)
    return x, y, x + max(width, 0), y + max(height, 0)


def _colour(place: int) -> tuple[int, int, int]:
    """Of the class at this place: each a golden angle further round the circle of hues."""
    hue, light = (0.02 + place * 0.618034) % 1, (1.0, 0.8)[place % 2]
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.85, light))


def _by_image(records: list[Record]) -> dict[int, list[Record]]:
    grouped = defaultdict(list)
    for record in records:
        grouped[record["image_id"]].append(record)
    return grouped


def _read(path: Path) -> list[Record]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RingbenchError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(found, list):
        raise RingbenchError(f"{path} holds no COCO results: expected a list of predictions")
    return found
