"""COCO 2017, and any set in its form: each part of a split is a JSON file and the folder of its images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagesets.providers.source import Boxes, absent, parts_of
from imagesets.spec import ImagesetSpec, Part
from ringbench.errors import RingbenchError
from ringbench.wording import found

LARGEST = 2**53  # evaluators hold ids as float64
NEEDED = ("images", "annotations", "categories")


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    for part in parts_of(spec, "{annotations: FILE, images: FOLDER}"):
        for path in (root / part.annotations, root / (part.images or ".")):
            if not path.exists():
                return absent(spec, path)
    return None


def boxes(spec: ImagesetSpec, root: Path) -> Boxes:
    """Raises RingbenchError for a file that is no COCO document, or keypoints that are not those of the entry."""
    documents = {name: [_read(spec, root, part) for part in getattr(spec, name)] for name in ("train", "test")}
    splits = {name: _joined(parts) for name, parts in documents.items()}
    return Boxes(splits, root)


def _read(spec: ImagesetSpec, root: Path, part: Part) -> dict[str, Any]:
    path, folder = root / part.annotations, root / (part.images or ".")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or lists in lists without end
        raise RingbenchError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(document.get(key), list) for key in NEEDED):
        raise RingbenchError(f"{path} is no COCO document: expected the lists {', '.join(NEEDED)} in it")
    for key, what, text in (("images", "an image", "file_name"), ("categories", "a category", "name")):
        for record in document[key]:
            _check(path, what, text, record)
    images = [{**image, "file_name": str(folder / image["file_name"])} for image in document["images"]]
    categories = [{"id": category["id"], "name": category["name"]} for category in document["categories"]]
    names = spec.keypoints and spec.keypoints.names
    for category in document["categories"]:
        if names and (stated := category.get("keypoints") or names) != names:  # some write an empty list where they have none
            raise RingbenchError(
                f"image set '{spec.name}': the keypoints of '{category['name']}' in {path} are {json.dumps(stated)}; the "
                f"registry's are {json.dumps(names)}"
            )
    return {"images": images, "annotations": document["annotations"], "categories": categories}


def _check(path: Path, what: str, text: str, record: Any) -> None:
    """Raises RingbenchError unless it has a whole number as id, and a text."""
    if not isinstance(record, dict):
        raise RingbenchError(f"{path} is no COCO document: {what} in it is {found(record)}; expected keys with values")
    key, name = record.get("id"), record.get(text)
    if type(key) is not int or abs(key) >= LARGEST:
        raise RingbenchError(f"{path}: the id of {what} is {found(key)}; expected a whole number below 2^53")
    if not isinstance(name, str) or not name.strip():
        raise RingbenchError(f"{path}: the {text} of {what}, id {key}, is {found(name)}; expected a text")


def _joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    categories = {(c["id"], c["name"]): c for document in documents for c in document["categories"]}
    joined = {key: [item for document in documents for item in document[key]] for key in ("images", "annotations")}
    return {**joined, "categories": list(categories.values())}
