"""Every provider says in a sentence what is missing or wrong; folders and embedded sets are found as they are."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_trees import keys_of, put, spec, tree

from imagesets import providers
from imagesets.image_set import ImageSet, load, missing
from imagesets.spec import ImagesetSpec, SplitRule
from ringbench.errors import RingbenchError, Unavailable, UsageError


def test_an_unknown_provider_is_a_usage_error_with_the_known_ones():
    with pytest.raises(
        UsageError, match=r"unknown provider 'floder'.*coco, embedded, folder, manifest, shapes, torchvision, voc"
    ):
        load(spec("floder"), Path())


@pytest.mark.parametrize("name", providers.PROVIDERS)
def test_every_registered_provider_answers_missing_and_gives_labels_or_boxes(name):
    module = providers.find(name)
    assert callable(module.missing) and callable(getattr(module, "load", None) or module.boxes)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"provider": "folder"}, "some_set"),
        ({"provider": "folder", "root": "elsewhere/deep"}, "elsewhere/deep"),
        ({"provider": "manifest", "manifest": "list.csv"}, "some_set/list.csv"),
        ({"provider": "torchvision", "dataset": "CIFAR10"}, "some_set/cifar-10-batches-py/batches.meta"),
        ({"provider": "torchvision", "dataset": "ImageNet"}, "some_set/train"),
    ],
)
def test_a_missing_set_is_unavailable_and_the_sentence_says_where_to_put_which_files(fields, place, tmp_path):
    absent = ImagesetSpec(name="some_set", title="Some set", source="https://example.org/set", **fields)
    with pytest.raises(Unavailable) as caught:
        load(absent, tmp_path)
    assert str(caught.value) == missing(absent, tmp_path)
    assert str(tmp_path / place) in str(caught.value)
    assert "https://example.org/set" in str(caught.value) and "some_set" in str(caught.value)


def test_an_absolute_root_is_used_as_it_is(tmp_path):
    tree(tmp_path / "here", "a/1.png", "a/2.png", "b/1.png", "b/2.png")
    assert missing(spec("folder", root=str(tmp_path / "here")), Path("/nowhere")) is None
    assert len(load(spec("folder", root=str(tmp_path / "here")), Path("/nowhere"))) == 4


def test_another_number_of_classes_than_expected_stops(tmp_path):
    tree(tmp_path, "a/1.png", "b/1.png")
    with pytest.raises(RingbenchError, match=r"has 2 classes .*; 3 were expected"):
        load(spec("folder", classes=3), tmp_path)
    assert load(spec("folder", classes=2), tmp_path).classes == ["a", "b"]


def test_the_embedded_digits_are_scikit_learns_scaled_to_bytes(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    found = load(spec("embedded", dataset="digits", classes=10), tmp_path)
    assert len(found) == 1797 and found.labels.tolist() == digits.target.tolist()
    assert found.classes == [str(i) for i in range(10)]
    for i in (0, 5, 1796):
        expected = np.floor(digits.images[i] * 255 / 16 + 0.5)
        np.testing.assert_array_equal(found.read(i), np.stack([expected] * 3, 2))
    assert {int(v) for v in np.unique(found.images)} == {int(k * 255 / 16 + 0.5) for k in range(17)}
    assert sum(map(len, found.splits.values())) == 1797


def test_an_unknown_embedded_dataset_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="'digits', not 'faces'"):
        load(spec("embedded", dataset="faces"), tmp_path)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "validation", "TESTING"), ("train", "valid", "test")])
def test_split_folders_are_found_under_their_usual_names(names, tmp_path):
    tree(tmp_path, *(f"{name}/{c}/{name}{k}.png" for name in names for c in "ba" for k in range(2)))
    found = load(spec("folder"), tmp_path)
    assert found.classes == ["a", "b"]
    for split, name in zip(("train", "val", "test"), names, strict=True):
        assert keys_of(found, split) == [f"{name}/{c}/{name}{k}.png" for c in "ab" for k in range(2)]
        assert found.labels[found.splits[split]].tolist() == [0, 0, 1, 1]
    assert found.trainval.tolist() == sorted([*found.splits["train"], *found.splits["val"]])


def test_a_set_without_split_folders_is_cut_by_the_rule(tmp_path):
    tree(tmp_path, *(f"{c}/{k}.png" for c in "ab" for k in range(10)))
    found = load(spec("folder", splits=SplitRule(test=0.3, val=0.3)), tmp_path)
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 10, "val": 4, "test": 6}


def test_numeric_class_names_sort_as_numbers_and_mixed_ones_as_text(tmp_path):
    tree(tmp_path / "numbers", "10/1.png", "2/1.png", "00001/1.png")
    assert load(spec("folder", root="numbers"), tmp_path).classes == ["00001", "2", "10"]
    tree(tmp_path / "mixed", "10/1.png", "2/1.png", "x/1.png")
    assert load(spec("folder", root="mixed"), tmp_path).classes == ["10", "2", "x"]
    tree(tmp_path / "superscript", "²/1.png", "10/1.png")
    assert load(spec("folder", root="superscript"), tmp_path).classes == ["10", "²"]


def test_hidden_files_and_other_files_are_skipped_and_counted(tmp_path):
    tree(tmp_path, "a/1.png", "a/2.JPG", "a/deep/er/3.WebP", "b/1.jpeg")
    tree(tmp_path, "a/.hidden.png", "a/._1.png", "a/.git/4.png", ".cache/x/1.png", "__MACOSX/a/1.png")
    for name in ("a/readme.txt", "b/Thumbs.db", "a/noextension", "top.txt"):
        (tmp_path / name).write_text("x")
    found = load(spec("folder"), tmp_path)
    assert found.classes == ["a", "b"]
    assert sorted(found.keys) == ["a/1.png", "a/2.JPG", "a/deep/er/3.WebP", "b/1.jpeg"]
    assert any("3 hidden, 3 no images" in note for note in found.notes)


def test_links_to_files_and_folders_are_followed_but_never_in_a_circle(tmp_path):
    tree(tmp_path / "store", "x/1.png", "x/2.png", "y.png")
    root = tree(tmp_path / "set", "a/0.png", "b/0.png")
    (root / "a" / "more").symlink_to(tmp_path / "store" / "x")
    (root / "a" / "linked.png").symlink_to(tmp_path / "store" / "y.png")
    (root / "c").symlink_to(tmp_path / "store" / "x")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "b" / "up").symlink_to(root)
    found = load(spec("folder", root="set"), tmp_path)
    assert found.classes == ["a", "b", "c"]
    assert sorted(found.keys) == ["a/0.png", "a/linked.png", "a/more/1.png", "a/more/2.png", "b/0.png", "c/1.png", "c/2.png"]
    assert any("2 links back to a folder above" in note for note in found.notes)


@pytest.mark.parametrize("how", ["file link", "hard link", "link to the split", "link to the class"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_one_file_in_two_splits_is_an_error_that_names_both(tmp_path, how, split):
    tree(tmp_path, "train/a/0.png", "train/a/1.png", "train/b/2.png")
    tree(tmp_path / {"val": "test", "test": "val"}[split], "a/0.png", "b/0.png")
    inside, place = tmp_path / "train" / "a" / "1.png", tmp_path / split
    if how == "link to the split":
        place.symlink_to("train")
    elif how == "link to the class":
        put(place / "b" / "3.png")
        (place / "a").symlink_to(inside.parent)
    else:
        tree(place, "a/9.png", "b/3.png")
        (place / "a/copy.png").symlink_to(inside) if how == "file link" else (place / "a/copy.png").hardlink_to(inside)
    with pytest.raises(RingbenchError, match=rf"train/a/\d\.png in train and {split}/a/\w+\.png in {split} are one file"):
        load(spec("folder"), tmp_path).require_measurable()


def test_links_within_a_split_and_equal_files_are_no_leak(tmp_path):
    tree(tmp_path, *(f"{split}/{key}.png" for split in ("train", "val", "test") for key in ("a/0", "b/1")))
    (tmp_path / "train/a/again.png").symlink_to("0.png")
    load(spec("folder"), tmp_path).require_measurable()


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    root = tree(tmp_path, "a/0.png", "b/0.png")
    (root / "a" / "gone.png").symlink_to(tmp_path / "nothing.png")
    with pytest.raises(Unavailable, match=r"a/gone\.png is a link to a file that is not there"):
        load(spec("folder"), tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_the_images_is_skipped_and_counted(tmp_path):
    os.mkfifo(tree(tmp_path, "a/0.png", "b/0.png") / "a" / "pipe.png")
    found = load(spec("folder"), tmp_path)
    assert found.keys == ["a/0.png", "b/0.png"]
    assert "files skipped: 1 pipes, sockets or devices" in found.notes


def test_an_empty_class_in_train_is_an_error_that_names_it(tmp_path):
    tree(tmp_path, "train/a/1.png", "test/a/1.png", "test/b/1.png")
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(RingbenchError, match="no training image of class 'b'"):
        load(spec("folder"), tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png", "test/c/1.png"],
            r"class 'c' is in \S*test but not in train",
        ),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png"], r"class 'b' is in train but not in \S*test"),
        (["train/a/1.png", "val/a/1.png", "valid/a/1.png"], "two val folders .*: val and valid"),
    ],
)
def test_splits_that_disagree_are_an_error_that_names_the_class(keys, message, tmp_path):
    with pytest.raises(RingbenchError, match=message):
        load(spec("folder"), tree(tmp_path, *keys))


def test_an_empty_class_in_test_and_a_class_of_one_image_are_noted(tmp_path):
    tree(tmp_path / "official", "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png", "test/a/1.png")
    (tmp_path / "official" / "test" / "b").mkdir()
    assert load(spec("folder", root="official"), tmp_path).notes == ["no image in test of 1 of 2 classes: b"]
    tree(tmp_path / "cut", *(f"a/{k}.png" for k in range(9)), "lonely/1.png")
    found = load(spec("folder", root="cut"), tmp_path)
    assert found.notes == ["no image in val of 1 of 2 classes: lonely", "no image in test of 1 of 2 classes: lonely"]
    assert "lonely/1.png" in keys_of(found, "train")


def test_a_set_with_test_images_only_is_unavailable_for_probes(tmp_path):
    tree(tmp_path, "test/a/1.png", "test/b/1.png")
    assert "has a test split only" in missing(spec("folder"), tmp_path)
    with pytest.raises(Unavailable, match="a probe needs training images"):
        load(spec("folder"), tmp_path)


def test_a_folder_without_classes_or_without_images_says_so(tmp_path):
    put(tmp_path / "flat" / "1.png")
    with pytest.raises(Unavailable, match="<split>/<class>/ or <class>/"):
        load(spec("folder", root="flat"), tmp_path)
    (tmp_path / "hollow" / "a").mkdir(parents=True)
    with pytest.raises(Unavailable, match="no images in"):
        load(spec("folder", root="hollow"), tmp_path)


def test_a_class_that_is_called_like_a_split_is_never_taken_for_one_in_silence(tmp_path):
    tree(tmp_path / "flat", "bus/1.png", "car/1.png", "train/1.png")
    with pytest.raises(RingbenchError, match=r"no class folders in \S*train; expected <split>/<class>/; if 'train' is a class"):
        load(spec("folder", root="flat"), tmp_path)
    tree(tmp_path / "other", "control/1.png", "test/1.png")
    with pytest.raises(Unavailable, match=r"if 'test' is a class, put all class folders into a folder \S*other/train of its own"):
        load(spec("folder", root="other"), tmp_path)
    (tmp_path / "other" / "train").mkdir()
    for name in ("control", "test"):
        (tmp_path / "other" / name).rename(tmp_path / "other" / "train" / name)
    assert load(spec("folder", root="other"), tmp_path).classes == ["control", "test"]
    tree(tmp_path / "deep", "bus/1.png", "train/electric/1.png", "train/steam/1.png")
    assert "folders beside the splits, left out: bus" in load(spec("folder", root="deep"), tmp_path).notes


def test_the_order_on_disk_and_the_place_of_the_root_change_nothing(tmp_path, monkeypatch):
    names = [f"{split}/{c}/{k}.png" for split in ("train", "test") for c in "abc" for k in range(7)]
    first = load(spec("folder", root="one"), tree(tmp_path / "one", *names).parent)
    shutil.copytree(tmp_path / "one", tmp_path / "far" / "two")
    scandir = os.scandir

    class Reversed(list):
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    monkeypatch.setattr(os, "scandir", lambda path: Reversed(sorted(scandir(path), key=lambda entry: entry.name, reverse=True)))
    second = load(spec("folder", root="two"), tmp_path / "far")
    assert second.keys == first.keys
    assert (second.fingerprint, second.split_hash) == (first.fingerprint, first.split_hash)


def test_real_textures_by_folder_are_cut_sixty_four_sixteen_twenty_in_every_class(real_data, tmp_path):
    found = load(spec("folder", root=str(real_data("dtd10") / "dtd" / "images"), classes=10), tmp_path)
    assert {name: np.bincount(found.labels[part]).tolist() for name, part in found.splits.items()} == {
        "train": [76] * 2 + [77] * 8, "val": [20] * 2 + [19] * 8, "test": [24] * 10,
    }  # fmt: skip
    assert found.notes == [] and min(found.read(7).shape[:2]) == 128


def test_real_cifar10_by_folder_has_its_official_test_split(real_data, tmp_path):
    found = load(spec("folder", root=str(real_data("cifar10_jpeg")), classes=10), tmp_path)
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 40_000, "val": 10_000, "test": 10_000}
    assert np.bincount(found.labels[found.splits["val"]]).tolist() == [1000] * 10
    assert all(found.keys[i].startswith("test/") for i in found.splits["test"])
    assert found.classes == sorted(found.classes) and found.read(59_999).shape == (32, 32, 3)


def test_a_fingerprint_changes_with_a_name_a_size_a_label_and_not_with_the_split_rule(tmp_path):
    def prints(**fields) -> tuple[str, str]:
        found = load(spec("folder", **fields), tmp_path)
        return found.fingerprint, found.split_hash

    tree(tmp_path, *(f"{c}/{k}.png" for c in "ab" for k in range(9)))
    fingerprint, split_hash = prints()
    assert prints() == (fingerprint, split_hash)
    other = prints(splits=SplitRule(seed=1))
    assert other[0] == fingerprint and other[1] != split_hash
    (tmp_path / "a/0.png").rename(tmp_path / "a/00.png")
    renamed = prints()
    assert renamed[0] != fingerprint and renamed[1] != split_hash
    (tmp_path / "a/00.png").rename(tmp_path / "a/0.png")
    put(tmp_path / "a/0.png", size=(60, 50))
    assert prints()[0] != fingerprint
    put(tmp_path / "a/0.png")
    assert prints() == (fingerprint, split_hash)
    (tmp_path / "a/0.png").rename(tmp_path / "b/9.png")
    assert prints()[0] != fingerprint


def test_the_fingerprint_of_arrays_covers_every_pixel_and_label():
    digits = load(spec("embedded", dataset="digits"), Path())

    def changed(images: np.ndarray, labels: np.ndarray) -> str:
        return ImageSet(digits.spec, digits.classes, labels, None, digits.keys, digits.splits, [], images=images).fingerprint

    assert changed(digits.images.copy(), digits.labels) == digits.fingerprint
    images, labels = digits.images.copy(), digits.labels.copy()
    images[900, 3, 3] ^= 1
    labels[5] = (labels[5] + 1) % 10
    assert len({digits.fingerprint, changed(images, digits.labels), changed(digits.images, labels)}) == 3


def test_a_file_that_vanished_since_loading_is_unavailable(tmp_path):
    found = load(spec("folder"), tree(tmp_path, "a/1.png", "b/1.png"))
    (tmp_path / "a/1.png").unlink()
    with pytest.raises(Unavailable, match=r"a/1\.png cannot be read"):
        _ = found.fingerprint
    with pytest.raises(Unavailable, match=r"a/1\.png cannot be read"):
        found.read(0)


def test_pixels_of_a_set_cannot_be_changed_by_a_reader():
    digits = load(spec("embedded", dataset="digits"), Path())
    with pytest.raises(ValueError, match="read-only"):
        digits.images[0] = 0
