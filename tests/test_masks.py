"""Masks are read as pycocotools reads them."""

import numpy as np
import pytest

from imagesets.masks import REACH, is_broken, pixels

coco = pytest.importorskip("pycocotools.mask", reason="pycocotools is the oracle here; it comes with Detectron2")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640)])
def test_run_lengths_become_the_pixels_that_pycocotools_encoded(size, share):
    mask = np.random.default_rng(0).random(size) < share
    mask[: size[0] // 2] = share > 0.4  # long runs and short ones
    rle = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    for counts in (rle["counts"], rle["counts"].decode()):
        segmentation = {"size": list(size), "counts": counts}
        assert not is_broken(segmentation, *size) and np.array_equal(pixels(segmentation, *size), mask)
        assert is_broken(segmentation, size[0] + 1, size[1])


def test_run_lengths_as_numbers_and_polygons_become_their_pixels():
    assert np.array_equal(pixels({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3), [[False, True, False], [True, False, False]])
    polygon = [10.0, 10.0, 60.0, 12.0, 50.0, 70.0]
    theirs = coco.decode(coco.frPyObjects([polygon], 80, 90))[:, :, 0].astype(bool)
    mine = pixels([polygon, [70, 70, 80, 70, 80, 78, 70, 78]], 80, 90)
    assert (mine[:, :68] & theirs[:, :68]).sum() > 0.9 * (mine[:, :68] | theirs[:, :68]).sum() and mine[74, 75]


@pytest.mark.parametrize("height, width", [(30, 40), (1, 1), (600, 20)])
def test_corners_are_read_as_far_away_as_pycocotools_has_memory_for(height, width):
    reach = REACH * max(height, width)
    polygon = [-reach, -reach, reach, -reach, reach, reach, -reach, reach]
    assert not is_broken([polygon], height, width)
    assert coco.area(coco.frPyObjects([[float(v) for v in polygon]], height, width)).tolist() == [height * width]
    for corner in (reach + 1, -reach - 1, 1e9, -1e9, 1e300, 10**400, float("nan"), float("inf"), True, None, "1", [1]):
        for place in range(8):
            far = [corner if i == place else value for i, value in enumerate(polygon)]
            assert is_broken([far], height, width), far


@pytest.mark.parametrize(
    "segmentation",
    [
        {"size": [2, 3], "counts": [1.0, 2, 3]},
        {"size": [2, 3], "counts": [True, 2, 3]},
        {"size": [2, 3], "counts": [1, 2, "3"]},
        {"size": [2, 3], "counts": [-1, 4, 3]},
        {"size": [2, 3], "counts": [10**400, 6 - 10**400]},
        {"size": [2, 3], "counts": []},
        {"size": [2, 3], "counts": {}},
        {"size": [2, 3], "counts": None},
        {"size": [2, 3], "counts": "P" * 100_000 + "6"},
        {"size": [2.0, 3.0], "counts": [1, 2, 3]},
        {"size": "23", "counts": [1, 2, 3]},
        {"size": None, "counts": [1, 2, 3]},
        {"counts": [1, 2, 3]},
        [[1, 1, 2, 1, 2, 2], None],
        [1, 1, 2, 1, 2, 2],
        ["abcdef"],
        "abcdef",
        True,
        7,
    ],
)
def test_what_is_neither_polygons_nor_run_lengths_is_broken(segmentation):
    assert is_broken(segmentation, 2, 3)
