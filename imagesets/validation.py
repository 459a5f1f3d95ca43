"""What can be wrong with images and their annotations: found before the first step, counted, and named."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image

from imagesets.decode import decode
from imagesets.masks import is_broken
from ringbench.errors import RingbenchError, Unavailable

EXAMPLES = 5
ENDS = {".jpg": b"\xff\xd9", ".jpeg": b"\xff\xd9", ".png": b"IEND\xae\x42\x60\x82"}
THINNEST = 250
ROUNDING = 1.0  # pixels by which a box may pass the edge of its image unreported
CROWD, EMPTY = "crowd: kept, to be ignored", "image without annotation: kept"
ORDINARY = {CROWD, EMPTY}  # counted, but nothing to tell a person about
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
NUMBERS = (int, float)  # JSON's true is none, though Python takes it for 1
Record = dict[str, Any]


class Report:
    """Problems counted, with a few examples of each. A problem reads `what: what became of it`.

    `lost` are the images that cannot be used, each as (problem, file).
    """

    def __init__(self, lost: Iterable[tuple[str, str]] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.lost: list[tuple[str, str]] = []
        for problem, file in lost:
            self.lose(problem, file)

    def lose(self, problem: str, file: str) -> None:
        self.lost.append((problem, file))
        self.add(problem, file)

    def add(self, problem: str, example: object) -> None:
        self.counts[problem] += 1
        shown = self.examples.setdefault(problem, [])
        if len(shown) < EXAMPLES:
            shown.append(str(example))

    def as_dict(self) -> dict[str, Record]:
        return {problem: {"count": n, "examples": self.examples[problem]} for problem, n in sorted(self.counts.items())}

    def sentences(self) -> list[str]:
        told = sorted(self.counts.keys() - ORDINARY)
        return [f"{self.counts[problem]} x {problem} (such as {self.examples[problem][0]})" for problem in told]


def validate(
    name: str, split: str, document: Record, categories: list[Record], report: Report, *, n_keypoints: int | None
) -> tuple[list[Record], list[Record]]:
    """The images and annotations of a COCO document that can be used, the annotations with every key that COCO's have.

    `categories` are those that count: annotations of the document's others are left out without a word.

    Raises Unavailable where every image is missing, RingbenchError where more than half is unusable or no object is left to learn
    from or to be found.
    """
    images = _images(name, split, document["images"], report)
    by_id = {image["id"]: image for image in images}
    elsewhere = {image["id"] for image in document["images"]} - by_id.keys()  # told already
    counted = {category["id"] for category in categories}
    known = counted | {category["id"] for category in document["categories"]}
    kept = []
    for found in document["annotations"]:
        if not isinstance(found, dict):
            report.add("annotation without keys and values: left out", f"{found!s:.40}")
            continue
        annotation = dict(found)
        image_id, category_id = _id(annotation, "image_id"), _id(annotation, "category_id")
        if (image := by_id.get(image_id)) is None:
            if image_id not in elsewhere:
                report.add("annotation of an unknown image: left out", _label(annotation))
        elif annotation.get("category_id") is None:
            report.add("annotation without a category: left out", _label(annotation, image))
        elif category_id not in counted:
            if category_id not in known:
                report.add("annotation of an unknown category: left out", _label(annotation, image))
        elif _usable(annotation, image, report, training=split == "train", n_keypoints=n_keypoints):
            kept.append(annotation)
    if not kept:
        raise RingbenchError(f"image set '{name}' has no annotation in {split} that can be used: {'; '.join(report.sentences())}")
    if all(map(passed_over, kept)):
        raise RingbenchError(
            f"image set '{name}' has no object in {split} that a detector could learn or be asked to find: all {len(kept)} are "
            "crowd or difficult"
        )
    for image_id in by_id.keys() - {annotation["image_id"] for annotation in kept}:
        report.add(EMPTY, by_id[image_id]["file_name"])
    _number(kept, report)
    return images, kept


def passed_over(annotation: Record) -> bool:
    """Whether no detector is asked to find it: COCO's crowd, VOC's difficult objects."""
    return bool(annotation.get("iscrowd") or annotation.get("difficult"))


def _images(name: str, split: str, found: list[Record], report: Report) -> list[Record]:
    unique: dict[Any, Record] = {}
    for image in found:
        first = unique.setdefault(image["id"], image)
        if first["file_name"] != image["file_name"]:
            raise RingbenchError(
                f"image set '{name}': two images of {split} have the id {image['id']}: {first['file_name']}, {image['file_name']}"
            )
        if first is not image:
            report.add("image listed twice: counted once", image["file_name"])
    for path, n in Counter(image["file_name"] for image in unique.values()).items():
        if n > 1:
            report.add("image file under several ids: counted for each", path)
    with ThreadPoolExecutor() as pool:
        states = list(pool.map(_inspect, unique.values()))
    usable, missing = [], 0
    for image, (problem, size) in zip(unique.values(), states, strict=True):
        missing += problem == "image missing: left out"
        if size is None:
            report.lose(problem, image["file_name"])
            continue
        if problem:
            report.add(problem, image["file_name"])
        usable.append({**image, "width": size[0], "height": size[1]})
    total = len(usable) + len(report.lost)
    if unique and missing == len(unique):
        raise Unavailable(
            f"image set '{name}': the images of {split} are not here; put them so that {found[0]['file_name']} exists"
        )
    if 2 * len(usable) < total or not usable:
        told = "; ".join(report.sentences()) or "there is none"
        raise RingbenchError(f"image set '{name}': only {len(usable)} of {total} images in {split} can be used: {told}")
    return usable


def _inspect(image: Record) -> tuple[str | None, tuple[int, int] | None]:
    """(problem, upright width and height); no size where the image cannot be used."""
    path = image["file_name"]
    if not os.path.isfile(path):  # noqa: PTH113 - a hundred thousand times
        return "image missing: left out", None
    try:
        with Image.open(path) as opened:
            size = opened.size
            if opened.getexif().get(0x0112) in SIDEWAYS:
                size = size[::-1]
        if not _ends(path):
            decode(path)  # something may follow the end of a whole image
    except Image.DecompressionBombError:
        return "image of more pixels than are safe to decode: left out", None
    except Exception:  # on arbitrary bytes the decoders raise almost anything
        return "image broken or truncated: left out", None
    if max(size) > THINNEST * min(size):  # of which a detector's resize leaves nothing
        return f"image more than {THINNEST} times as long as it is wide: left out", None
    stated = image.get("width"), image.get("height")
    if not all(type(edge) in NUMBERS and edge > 0 for edge in stated):
        return "image of unstated size: taken from the file", size
    if stated != size:
        return "image of another size than stated: left out", None
    return None, size


def _ends(path: str) -> bool:
    """Whether the file ends as its format ends."""
    end = ENDS.get(os.path.splitext(path)[1].lower())  # noqa: PTH122
    if end is None:
        return False
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(-len(end), os.SEEK_END)
        return file.read() == end


def _usable(annotation: Record, image: Record, report: Report, *, training: bool, n_keypoints: int | None) -> bool:
    """Complete the annotation, report what is wrong with it, and say whether to keep it."""
    label = _label(annotation, image)
    if (box := numbers(annotation.get("bbox"), 4)) is None:
        report.add("box that is not four numbers: left out", label)
        return False
    for flag in ("iscrowd", "difficult") if "difficult" in annotation else ("iscrowd",):
        if annotation.get(flag) not in (None, 0, 1):
            report.add(f"{flag} that is neither 0 nor 1: taken as 0", label)
        annotation[flag] = int(annotation.get(flag) == 1)  # some write null
    if annotation["iscrowd"]:
        report.add(CROWD, label)
    if not _complete_keypoints(annotation, n_keypoints):
        report.add(f"keypoints that are not {n_keypoints} x, y, v: the box kept", label)
    mask = annotation.pop("segmentation", None) or None  # some write an empty list where they have no mask
    if mask is not None and is_broken(mask, image["height"], image["width"]):
        report.add("broken mask: the box kept", label)
    elif mask is not None:
        annotation["segmentation"] = mask
    x, y, width, height = box
    area = annotation.get("area")
    if numbers([area], 1) is None or area < 0:
        annotation["area"] = width * height
        if area is not None:
            report.add("area that is no number from 0 up: that of the box taken", label)
    beyond = max(-x, -y, x + width - image["width"], y + height - image["height"])
    apart = x >= image["width"] or y >= image["height"] or x + width <= 0 or y + height <= 0
    if width <= 0 or height <= 0 or apart:
        fate = "left out" if training else "kept, as the official evaluation does"
        report.add(f"box {'without area' if width <= 0 or height <= 0 else 'outside its image'}: {fate}", label)
        return not training
    if min(width, height) <= 1:
        report.add("box at most one pixel wide or high: kept", label)
    if beyond > ROUNDING:
        report.add("box partly outside its image: kept", label)
    return True


def _complete_keypoints(annotation: Record, n_keypoints: int | None) -> bool:
    """Fill in what is missing, drop keypoints that nobody asked for, and say whether they fit; those that do not become zeros,
    which leaves the object to boxes and masks."""
    found, none = annotation.pop("keypoints", None), [0] * 3 * (n_keypoints or 0)
    annotation.pop("num_keypoints", None)
    if n_keypoints is None:
        return True
    points = numbers(found or none, len(none))
    annotation["keypoints"] = points or none
    annotation["num_keypoints"] = sum(v > 0 for v in annotation["keypoints"][2::3])
    return points is not None


def _number(annotations: list[Record], report: Report) -> None:
    """Ids are handles: different, and above 0, which pycocotools takes for "no match"."""
    ids = Counter(_id(annotation, "id") for annotation in annotations)
    if all(key is not None and key > 0 and n == 1 for key, n in ids.items()):
        return
    for number, annotation in enumerate(annotations, 1):
        key = _id(annotation, "id")
        if key is not None and ids[key] > 1:
            report.add("annotation id used twice: numbered anew", key)
        annotation["id"] = number


def _id(annotation: Record, key: str) -> int | None:
    """None where it is no whole number that float64 holds, as evaluators do, whatever Python takes for equal to one."""
    value = annotation.get(key)
    return value if type(value) is int and abs(value) < 2**53 else None


def numbers(values: Any, length: int) -> list[float] | None:
    """None where it is no list of so many numbers of 32 bits: no place in an image has larger ones."""
    fit = isinstance(values, list) and len(values) == length
    return values if fit and all(type(value) in NUMBERS and abs(value) < 2**31 for value in values) else None


def _label(annotation: Record, image: Record | None = None) -> str:
    where = os.path.basename(image["file_name"]) if image else f"image {annotation.get('image_id')!s:.40}"  # noqa: PTH119
    return f"annotation {annotation.get('id')!s:.40} of {where}"
