"""Pascal VOC 2007 and 2012, and any set in their form: lists of images in ImageSets, XML in Annotations, and JPEGImages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from imagesets.providers.source import Boxes, absent
from imagesets.spec import ImagesetSpec, Part
from ringbench.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
Lost = list[tuple[str, str]]


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    if not spec.train or not spec.test:
        raise UsageError(
            f"image set '{spec.name}' needs `train` and `test`, each a list such as "
            "[{annotations: VOC2007/ImageSets/Main/trainval.txt}]"
        )
    for part in (*spec.train, *spec.test):
        for path in (root / part.annotations, *(_base(root, part) / name for name in ("Annotations", "JPEGImages"))):
            if not path.exists():
                return absent(spec, path)
    return None


def boxes(spec: ImagesetSpec, root: Path) -> Boxes:
    """The classes are the entry's `class_names`, or all that the training annotations name, in alphabetical order."""
    lost: dict[str, Lost] = {"train": [], "test": []}
    splits = {split: _document(root, getattr(spec, split), images) for split, images in lost.items()}
    names = spec.class_names or sorted({annotation["category_id"] for annotation in splits["train"]["annotations"]})
    ids = {name: number for number, name in enumerate(names, 1)}
    for document in splits.values():
        document["categories"] = [{"id": number, "name": name} for name, number in ids.items()]
        for annotation in document["annotations"]:  # an unknown name stays, and is found to be no category
            annotation["category_id"] = ids.get(annotation["category_id"], annotation["category_id"])
    return Boxes(splits, root, "voc", lost=lost)


def _document(root: Path, parts: list[Part], lost: Lost) -> dict[str, list[dict[str, Any]]]:
    """A COCO document whose category ids are still names."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    listed = ((_base(root, part), name) for part in parts for name in _names(root / part.annotations))
    for base, name in dict.fromkeys(listed):
        path = base / "Annotations" / f"{name}.xml"
        try:
            tree = ElementTree.parse(path).getroot()
        except FileNotFoundError:
            lost.append(("image without its XML file: left out", str(path)))
            continue
        except ElementTree.ParseError as error:
            lost.append(("image whose XML file cannot be read: left out", f"{path}, {error}"))
            continue
        size = {key: _whole(tree.findtext(f"size/{key}")) for key in ("width", "height")}
        images.append({"id": len(images) + 1, "file_name": str(_image(base, name)), **size})
        for thing in tree.iter("object"):
            annotations.append({"id": len(annotations) + 1, "image_id": len(images), **_annotation(thing)})
    return {"images": images, "annotations": annotations}


def _annotation(thing: ElementTree.Element) -> dict[str, Any]:
    annotation = {
        "category_id": (thing.findtext("name") or "").strip(),
        "iscrowd": 0,
        "difficult": _whole(thing.findtext("difficult")),
    }
    try:
        left, top, right, bottom = (float(thing.findtext(f"bndbox/{corner}")) for corner in CORNERS)
    except (TypeError, ValueError):
        return annotation  # without a box: found by the validation of all sets
    # Pixels count from 1 in VOC, and the last one is inside; COCO's boxes are continuous and begin at 0.
    return {**annotation, "bbox": [left - 1, top - 1, right - left + 1, bottom - top + 1]}


def _base(root: Path, part: Part) -> Path:
    return (root / part.annotations).parents[2]


def _names(path: Path) -> list[str]:
    """The first word of each line: lists of one class add whether it is there."""
    return [line.split()[0] for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def _image(base: Path, name: str) -> Path:
    paths = [base / "JPEGImages" / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((path for path in paths if path.is_file()), paths[0])


def _whole(text: str | None) -> int:
    return int(text) if text and text.strip().isdecimal() else 0
