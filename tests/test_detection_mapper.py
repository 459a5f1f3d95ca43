"""A detector is given the pixels that `decode` gives, whatever the file; in all else the mapper is Detectron2's own."""

import numpy as np
import pytest
import torch
from PIL import Image
from test_detection import few_scenes, needs_detectron2, scenes  # noqa: F401 - fixtures

from imagesets.decode import decode

pytestmark = needs_detectron2


@pytest.fixture
def cfg():
    from transfer.detection import config

    cfg = config.read("coco_c4_1x")
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MIN_SIZE_TEST = (80, 96), 0
    return cfg


def gray16(path):
    Image.fromarray(np.arange(0, 30 * 40 * 50, 50, dtype=np.uint16).reshape(30, 40)).save(path)


def transparent(path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 4), dtype=np.uint8)
    Image.fromarray(pixels, "RGBA").save(path)


def palette(path):
    Image.fromarray(np.arange(1200).reshape(30, 40).astype(np.uint8) % 7, "P").save(path, transparency=3)


def turned(path):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(path, exif=exif)


@pytest.mark.parametrize("colours", ["RGB", "BGR"])
@pytest.mark.parametrize("save", [gray16, transparent, palette, turned])
def test_every_kind_of_file_is_read_as_the_other_probes_read_it(cfg, tmp_path, save, colours):
    from transfer.detection.mapper import Mapper

    path, cfg.INPUT.FORMAT = str(tmp_path / "image.png"), colours
    save(path)
    record = {"file_name": path, "image_id": 1, "height": 30, "width": 40, "annotations": []}
    found = Mapper(cfg, is_train=False)(record)["image"].permute(1, 2, 0).numpy()
    expected = decode(path)
    assert np.array_equal(found, expected if colours == "RGB" else expected[:, :, ::-1])
    assert record["annotations"] == [], "the data set's own record is left alone"


@pytest.mark.parametrize("training", [True, False])
def test_on_ordinary_images_nothing_differs_from_detectron2(cfg, scenes, training):  # noqa: F811
    from detectron2.data import DatasetMapper
    from detectron2.utils.env import seed_all_rng

    from transfer.detection import data
    from transfer.detection.mapper import Mapper

    given = []
    for mapper in (DatasetMapper(cfg, is_train=training), Mapper(cfg, is_train=training)):
        seed_all_rng(3)
        given.append([mapper(record) for record in data.records(scenes.splits["train"], scenes.category_ids)])
    for theirs, ours in zip(*given, strict=True):
        assert torch.equal(theirs.pop("image"), ours.pop("image"))
        if training:
            a, b = theirs.pop("instances"), ours.pop("instances")
            assert torch.equal(a.gt_boxes.tensor, b.gt_boxes.tensor)
            assert torch.equal(a.gt_classes, b.gt_classes)
            assert str(a.gt_masks.polygons) == str(b.gt_masks.polygons)
        assert theirs == ours
