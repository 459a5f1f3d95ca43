"""Pascal VOC 2007 and 2012, and any set in their form: lists of images in ImageSets, XML in Annotations, and JPEGImages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from imagesets.providers.source import Boxes, absent, parts_of
from imagesets.spec import ImagesetSpec, Part
from ringbench.errors import RingbenchError

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
ENCODING = re.compile(rb"""<\?xml[^>]*\sencoding\s*=\s*["']([\w.-]+)""")
FLAGS = {"": 0, "false": 0, "true": 1}
Lost = list[tuple[str, str]]


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    for part in parts_of(spec, "{annotations: VOC2007/ImageSets/Main/trainval.txt}"):
        for path in (root / part.annotations, *(_base(root, part) / name for name in ("Annotations", "JPEGImages"))):
            if not path.exists():
                return absent(spec, path)
    return None


def boxes(spec: ImagesetSpec, root: Path) -> Boxes:
    """The classes are the entry's `class_names`, or all that the training annotations name, in alphabetical order."""
    lost: dict[str, Lost] = {"train": [], "test": []}
    splits = {split: _document(root, getattr(spec, split), images) for split, images in lost.items()}
    names = spec.class_names or sorted({annotation["category_id"] for annotation in splits["train"]["annotations"]} - {None})
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
    listed = ((_base(root, part), name) for part in parts for name in _names(root / part.annotations, _base(root, part)))
    for base, name in dict.fromkeys(listed):
        path = base / "Annotations" / f"{name}.xml"
        try:
            tree = _tree(path)
        except FileNotFoundError:
            lost.append(("image without its XML file: left out", str(path)))
            continue
        except (OSError, LookupError, ValueError, ElementTree.ParseError) as error:  # of encodings: the middle two
            lost.append(("image whose XML file cannot be read: left out", f"{path}, {error}"))
            continue
        size = {key: _number(tree.findtext(f"size/{key}")) for key in ("width", "height")}
        images.append({"id": len(images) + 1, "file_name": str(_image(base, name)), **size})
        for thing in tree.iter("object"):
            annotations.append({"id": len(annotations) + 1, "image_id": len(images), **_annotation(thing)})
    return {"images": images, "annotations": annotations}


def _tree(path: Path) -> ElementTree.Element:
    """Decoded as the file declares, since Python knows more encodings than its XML parser."""
    data = path.read_bytes()
    declared = ENCODING.match(data)
    tree = ElementTree.fromstring(data.decode(declared[1].decode()) if declared else data)
    if tree.tag != "annotation":
        raise ValueError(f"it is of a <{tree.tag}>; expected an <annotation>")
    return tree


def _annotation(thing: ElementTree.Element) -> dict[str, Any]:
    annotation = {
        "category_id": (thing.findtext("name") or "").strip() or None,
        "iscrowd": 0,
        "difficult": _flag(thing.findtext("difficult")),
    }
    try:
        left, top, right, bottom = (float(thing.findtext(f"bndbox/{corner}")) for corner in CORNERS)
    except (TypeError, ValueError):
        return annotation  # without a box: found by the validation of all sets
    # Pixels count from 1 in VOC, and the last one is inside; COCO's boxes are continuous and begin at 0.
    return {**annotation, "bbox": [left - 1, top - 1, right - left + 1, bottom - top + 1]}


def _base(root: Path, part: Part) -> Path:
    return (root / part.annotations).parent.parent.parent


def _names(path: Path, base: Path) -> list[str]:
    """Each line, or its first word where that is no image's: lists of one class add whether it is there."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise RingbenchError(f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [line if (base / "Annotations" / f"{line}.xml").is_file() else line.split()[0] for line in lines]


def _image(base: Path, name: str) -> Path:
    paths = [base / "JPEGImages" / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((path for path in paths if path.is_file()), paths[0])


def _flag(text: str | None) -> float | str | None:
    word = (text or "").strip().lower()
    return FLAGS.get(word, _number(word))


def _number(text: str | None) -> float | str | None:
    """What is no number stays, for the validation of all sets to find."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return text
