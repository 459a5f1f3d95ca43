"""bench show-predictions: a picture for each image, ground truth on the left, predictions on the right."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bench.cli import app
from imagesets.providers import shapes


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(shapes, "SCENES", {"train": 2, "test": 4})


def show(*args: str):
    return CliRunner().invoke(app, ["show-predictions", "shapes", *args])


def predictions(*scores: float) -> list[dict]:
    """A box that covers all but the edge of the first scene, for each score."""
    height, width = shapes.scene("test", 0)[0].shape[:2]
    box, points = [4, 4, width - 8, height - 8], [10, 10, 1] * 5
    full = {"size": [height, width], "counts": [0, height * width]}
    keys = {"image_id": 1, "category_id": 2, "bbox": box, "segmentation": full, "keypoints": points}
    return [{**keys, "score": score} for score in scores]


def test_ground_truth_is_beside_the_predictions_that_score_enough(tmp_path):
    Path("found.json").write_text(json.dumps(predictions(0.9, 0.2)))
    Path("none.json").write_text("[]")
    for name, least in (("found", "0.5"), ("none", "0.5"), ("found", "0.95")):
        result = show(f"{name}.json", "--out", f"{name}{least}", "--score", least, "--images", "2")
        assert result.exit_code == 0, result.output
        assert result.output.split() == [f"{name}{least}/00000.png", f"{name}{least}/00003.png"]
    found, none, stricter = (
        np.asarray(Image.open(path)) for path in ("found0.5/00000.png", "none0.5/00000.png", "found0.95/00000.png")
    )
    middle = found.shape[1] // 2
    assert found.shape == none.shape and found.shape[1] > 2 * 480  # small scenes are enlarged
    assert np.array_equal(found[:, :middle], none[:, :middle])
    assert (found[:, middle:] != none[:, middle:]).any(2).mean() > 0.8  # the mask tints everything
    changed = (stricter != none).any(2)
    assert not changed[40:].any()  # but for the heading, which tells the score


def test_all_test_images_are_drawn_where_more_are_asked_for():
    Path("none.json").write_text("[]")
    assert len(show("none.json", "--images", "99").output.split()) == 4
    assert len(list(Path("pictures").iterdir())) == 4


def test_images_of_one_name_in_two_folders_are_two_pictures(tmp_path):
    root, box = tmp_path / "data" / "two", {"category_id": 1, "bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0}
    files = {"train": ["c/1.png"], "test": ["a/1.png", "b/1.png"]}
    for split, names in files.items():
        for grey, name in enumerate(names):
            (root / name).parent.mkdir(parents=True)
            Image.new("L", (32, 32), 50 * grey + 20 * (split == "train")).convert("RGB").save(root / name)
        images = [{"id": i, "file_name": name, "height": 32, "width": 32} for i, name in enumerate(names)]
        objects = [{"id": i + 1, "image_id": i, **box} for i in range(len(names))]
        document = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
        (root / f"{split}.json").write_text(json.dumps(document))
    Path("registry.yaml").write_text(
        "imagesets:\n  two: {title: Two, provider: coco, root: two, classes: 1,\n"
        "    train: [{annotations: train.json, images: .}], test: [{annotations: test.json, images: .}]}\n"
    )
    Path("none.json").write_text("[]")
    result = CliRunner().invoke(app, ["show-predictions", "two", "none.json"])
    assert result.output.split() == ["pictures/1-0.png", "pictures/1-1.png"], result.output


@pytest.mark.parametrize(("height", "width"), [(2, 3000), (3000, 2), (1, 1), (2500, 3000)])
def test_no_picture_is_larger_than_a_screen_or_two_however_long_its_image(height, width, tmp_path):
    from bench.show_predictions import side_by_side
    from imagesets.annotated import AnnotatedSet
    from imagesets.spec import ImagesetSpec

    Image.new("RGB", (width, height)).save(tmp_path / "x.png")
    spec = ImagesetSpec(name="x", title="x", provider="coco")
    images = AnnotatedSet(spec, ["thing"], [1], None, {}, [], "coco", tmp_path)
    truth = [{"bbox": [0, 0, width, height], "category_id": 1}]
    picture = side_by_side(images, {"file_name": tmp_path / "x.png", "height": height, "width": width}, truth, [], "predicted")
    assert picture.width < 2 * 1600 + 50 and picture.height < 1700


ONE = '[{"image_id": 1, "category_id": 2, "bbox": [1, 1, 2, 2], "score": 1, '


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (None, 3, "found.json cannot be read: No such file"),
        ("{", 1, "found.json is not readable as JSON"),
        ('{"a": 1}', 1, "holds no COCO results: expected a list of predictions"),
        (
            "[1]",
            1,
            "found.json does not fit 'shapes': a prediction is no mapping; expected image_id, category_id, bbox and score",
        ),
        ('[{"image_id": 1}]', 1, "a prediction lacks 'category_id'; expected image_id, category_id, bbox and score"),
        ('[{"image_id": 999, "category_id": 2, "bbox": [1, 1, 2, 2], "score": 1}]', 1, "predictions name the image 999, which"),
        ('[{"image_id": 1, "category_id": 99, "bbox": [1, 1, 2, 2], "score": 1}]', 1, "predictions name the category 99, which"),
        ('[{"image_id": 1, "category_id": 2, "bbox": [1, 1, 2], "score": 1}]', 1, "has [1, 1, 2] as bbox; expected 4 numbers"),
        ('[{"image_id": 1, "category_id": 2, "bbox": [1, 1, 2, NaN], "score": 1}]', 1, "bbox that is not finite"),
        (ONE + '"segmentation": {"size": [3, 3], "counts": [9]}}]', 1, "a mask of image 1 is broken, or of another size"),
        (ONE + '"segmentation": {"size": [200, 200]}}]', 1, "a mask of image 1 is broken"),
        ("[" * 200_000, 1, "is not readable as JSON"),
        ('[{"image_id": 1, "category_id": 2, "bbox": [1e30, 1, 2, 2], "score": 1}]', 1, "lies nowhere near it"),
        (ONE + '"keypoints": [1, 2, NaN]}]', 1, "keypoints of image 1 are not x, y, v for each"),
        (ONE + '"keypoints": [1' + "0" * 400 + ", 2, 1]}]", 1, "keypoints of image 1 are not x, y, v for each"),
        (ONE + '"keypoints": [1, 2]}]', 1, "keypoints of image 1 are not x, y, v for each"),
        (ONE + '"keypoints": [1, 2, null]}]', 1, "keypoints of image 1 are not x, y, v for each"),
    ],
)
def test_a_file_without_predictions_is_refused_in_a_sentence(content, code, sentence):
    if content is not None:
        Path("found.json").write_text(content)
    result = show("found.json")
    assert result.exit_code == code and sentence in result.output and "Traceback" not in result.output
