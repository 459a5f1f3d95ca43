"""Channel statistics are exact, counted over the training images, and kept."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagesets import statistics
from imagesets.decode import BadImage
from imagesets.image_set import load
from imagesets.spec import ImagesetSpec
from imagesets.statistics import channel_statistics
from ringbench import places
from ringbench.errors import RingbenchError


def folder_set(root: Path, sizes: list[tuple[int, int]]):
    rng = np.random.default_rng(0)
    for i, (height, width) in enumerate(sizes):
        path = root / "train" / "ab"[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 200 + i % 50, (height, width, 3), np.uint8)).save(path)
    return load(ImagesetSpec(name="noise", title="Noise", provider="folder", root=str(root)), root)


def from_all_pixels(image_set) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.concatenate([image_set.read(i).reshape(-1, 3) for i in image_set.trainval]).astype(np.float64) / 255
    return pixels.mean(0), pixels.std(0)


def test_mean_and_deviation_equal_those_of_all_training_pixels_stacked(tmp_path):
    rng = np.random.default_rng(1)
    image_set = folder_set(tmp_path, [(int(h), int(w)) for h, w in rng.integers(1, 40, (150, 2))])
    mean, std = channel_statistics(image_set, tmp_path / "cache")
    expected_mean, expected_std = from_all_pixels(image_set)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-12)
    np.testing.assert_allclose(std, expected_std, rtol=1e-12)
    assert len(mean) == len(std) == 3 and all(type(x) is float for x in mean + std)


def test_the_channels_of_the_digits_are_equal_and_right(tmp_path):
    image_set = load(ImagesetSpec(name="digits", title="Digits", provider="embedded", dataset="digits"), tmp_path)
    mean, std = channel_statistics(image_set, tmp_path)
    pixels = image_set.images[image_set.trainval] / 255
    np.testing.assert_allclose(mean, pixels.mean(), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(), rtol=1e-12)
    assert len(set(mean)) == len(set(std)) == 1


def test_a_constant_channel_has_deviation_zero_exactly(tmp_path):
    for c in "ab":
        (tmp_path / "train" / c).mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (7, 7), (77, 77, 77)).save(tmp_path / "train" / c / f"{k}.png")
    image_set = load(ImagesetSpec(name="flat", title="Flat", provider="folder", root="."), tmp_path)
    assert channel_statistics(image_set, tmp_path / "cache") == ((77 / 255,) * 3, (0.0,) * 3)


def test_a_second_call_reads_no_image_and_another_set_or_split_is_counted_anew(tmp_path, monkeypatch):
    image_set = folder_set(tmp_path / "data", [(8, 8)] * 20)
    first = channel_statistics(image_set)
    assert list((places.cache() / "statistics").iterdir())
    counted = []
    count = statistics._count
    monkeypatch.setattr(statistics, "_count", lambda *arguments: counted.append(1) or count(*arguments))
    assert channel_statistics(image_set) == first and not counted
    again = load(image_set.spec, tmp_path)
    assert channel_statistics(again) == first and not counted
    cut_otherwise = image_set.spec.model_copy(update={"splits": image_set.spec.splits.model_copy(update={"seed": 5})})
    assert channel_statistics(load(cut_otherwise, tmp_path)) != first and counted == [1]
    other = folder_set(tmp_path / "data", [(8, 9)] * 20)
    assert channel_statistics(other) != first and counted == [1, 1]


def test_progress_counts_every_training_image(tmp_path):
    image_set = folder_set(tmp_path / "data", [(4, 4)] * 200)
    calls = []
    channel_statistics(image_set, tmp_path / "cache", lambda done, total: calls.append((done, total)))
    total = len(image_set.trainval)
    assert calls[-1] == (total, total) and [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_a_bad_image_stops_with_its_path_or_is_left_out_and_the_cache_never_hides_it(tmp_path):
    image_set = folder_set(tmp_path / "data", [(6, 6)] * 40)
    bad = image_set.trainval[3]
    victim = image_set.root / image_set.keys[bad]
    victim.write_bytes(victim.read_bytes()[:60])
    with pytest.raises(BadImage, match=victim.name):
        channel_statistics(image_set, tmp_path / "cache")
    mean, std = channel_statistics(image_set, tmp_path / "cache", on_bad="skip")
    good = [i for i in image_set.trainval if i != bad]
    pixels = np.concatenate([image_set.read(i).reshape(-1, 3) for i in good]) / 255
    np.testing.assert_allclose(mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(0), rtol=1e-12)
    kept = json.loads(next((tmp_path / "cache" / "statistics").iterdir()).read_text())
    assert kept["skipped"] == [image_set.keys[bad]]
    assert channel_statistics(image_set, tmp_path / "cache", on_bad="skip") == (mean, std)
    with pytest.raises(BadImage, match=victim.name):
        channel_statistics(image_set, tmp_path / "cache")


def test_a_set_of_bad_images_only_is_an_error_and_leaves_no_cache(tmp_path):
    image_set = folder_set(tmp_path / "data", [(6, 6)] * 6)
    for i in range(len(image_set)):
        (image_set.root / image_set.keys[i]).write_bytes(b"no image")
    with pytest.raises(RingbenchError, match="no training image that can be read"):
        channel_statistics(image_set, tmp_path / "cache", on_bad="skip")
    assert not (tmp_path / "cache").exists()


def test_fashion_mnist_has_its_well_known_statistics(real_data, tmp_path):
    root = str(real_data("fashion_mnist"))
    spec = ImagesetSpec(name="fashion_mnist", title="Fashion-MNIST", provider="torchvision", dataset="FashionMNIST", root=root)
    mean, std = channel_statistics(load(spec, tmp_path), tmp_path)
    assert [round(x, 4) for x in mean] == [0.2860] * 3
    assert [round(x, 4) for x in std] == [0.3530] * 3
