"""Generated shapes: the same bytes everywhere, annotations that fit the pixels, and single shapes for training an encoder."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from bench import registry
from imagesets import annotated, image_set, masks
from imagesets.decode import decode
from imagesets.providers import shapes
from ringbench import places

SCENES = "678bda912f4a8c41c6439d8d2b4c828954f96a0f0152ae234fae8b049d30ea10"  # sha256 of the files of 24 and 6 scenes
SINGLES = "25e7b6a8790885edd7133236b81ba82cbd1fbafec6a89f4514a8ed24e13eefd6"  # of 40 and 12 single shapes


@pytest.fixture
def few(monkeypatch):
    """Enough to see whether they are right."""
    monkeypatch.setattr(shapes, "SCENES", {"train": 24, "test": 6})
    monkeypatch.setattr(shapes, "SINGLES", {"train": 40, "test": 12})


def load() -> annotated.AnnotatedSet:
    return annotated.load(registry.load().find("imagesets", "shapes"), Path("/nowhere"))


def bytes_below(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def test_scenes_and_single_shapes_are_the_same_bytes_on_every_machine(few):
    load()
    assert bytes_below(places.cache() / "shapes") == SCENES
    single = image_set.load(registry.load().find("imagesets", "shapes"), Path("/nowhere"))
    assert single.fingerprint == SINGLES


def test_a_scene_does_not_depend_on_how_many_there_are(few):
    few_images = load().splits["train"].images
    assert np.array_equal(decode(few_images[3]["file_name"]), shapes.scene("train", 3)[0])


def test_scenes_are_written_once(few):
    first = load()
    path = Path(first.splits["train"].images[0]["file_name"])
    before = path.stat().st_mtime_ns
    assert load().fingerprint == first.fingerprint and path.stat().st_mtime_ns == before
    assert [entry.name for entry in (places.cache() / "shapes").iterdir()] == [f"v{shapes.VERSION}"]


def test_scenes_that_another_process_finished_first_are_taken(few, monkeypatch):
    def overtaken(folder: Path, split: str, number: int) -> None:
        write_split(folder, split, number)
        if split == "test":
            monkeypatch.setattr(shapes, "_write_split", write_split)
            shapes.write(places.cache() / "shapes" / f"v{shapes.VERSION}")

    write_split = shapes._write_split
    monkeypatch.setattr(shapes, "_write_split", overtaken)
    assert len(load().splits["train"].images) == 24


def test_annotations_fit_what_is_drawn(few):
    images = load()
    assert images.classes == ["disc", "triangle", "square", "arrow"] and not images.notes
    for split in images.splits.values():
        for image in split.images:
            mine = [a for a in split.annotations if a["image_id"] == image["id"]]
            assert 1 <= len(mine) <= 4
            pixels = decode(image["file_name"]).astype(int)
            covered = np.zeros(pixels.shape[:2], int)
            for annotation in mine:
                mask = masks.pixels(annotation["segmentation"], *covered.shape)
                covered += mask
                assert abs(int(mask.sum()) - annotation["area"]) <= 0.15 * annotation["area"]
                away = np.abs(pixels[mask] - np.median(pixels[mask], 0)).max(1)
                assert (away <= 24).mean() > 0.85  # of one colour, but for noise and Pillow's wider edge
                x, y, width, height = annotation["bbox"]
                assert x >= 0 and y >= 0 and x + width <= image["width"] and y + height <= image["height"]
                points = np.reshape(annotation["keypoints"], (-1, 3))
                seen = points[points[:, 2] > 0]
                assert len(seen) == annotation["num_keypoints"] == {1: 0, 2: 3, 3: 4, 4: 5}[annotation["category_id"]]
                assert ((seen[:, :2] >= [x - 1, y - 1]) & (seen[:, :2] <= [x + width, y + height])).all()
            assert (covered > 1).sum() <= 0.02 * covered.size  # Pillow's edges may touch


def test_left_is_left_of_right_and_top_is_above(few):
    images = load()
    names = images.keypoints.names
    for annotation in images.splits["train"].annotations:
        at = {name: p for name, p in zip(names, np.reshape(annotation["keypoints"], (-1, 3)), strict=True) if p[2] > 0}
        for left, right in images.keypoints.flip_pairs:
            if left in at:
                assert at[left][0] < at[right][0]
        if "top" in at:
            assert at["top"][1] < at["lower_left"][1] and at["top"][1] < at["lower_right"][1]


def test_single_shapes_are_an_image_set_with_as_many_of_each_class(few):
    single = image_set.load(registry.load().find("imagesets", "shapes"), Path("/nowhere"))
    assert single.images.shape == (52, 64, 64, 3) and single.classes == shapes.CLASSES
    assert len(single.splits["test"]) == 12 and len(single.trainval) == 40
    assert np.bincount(single.labels).tolist() == [13] * 4
    assert len({image.tobytes() for image in single.images}) == 52
