"""Every provider finds the same images, labels and official splits that are there, and says in a sentence what is wrong."""

import csv
import gzip
import hashlib
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from imagesets import providers
from imagesets.image_set import ImageSet, load, missing
from imagesets.providers import torchvision as torchvision_provider
from imagesets.spec import ImagesetSpec, SplitRule
from ringbench.errors import RingbenchError, Unavailable, UsageError


def spec(provider: str, **fields) -> ImagesetSpec:
    return ImagesetSpec(name="some_set", title="Some set", provider=provider, root=fields.pop("root", "."), **fields)


def put(path: Path, colour: int = 0, size: tuple[int, int] = (6, 5)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 255 - colour, 7)).save(path, "PNG")
    return path


def tree(root: Path, *keys: str) -> Path:
    for n, key in enumerate(keys):
        put(root / key, n)
    return root


def keys_of(found: ImageSet, split: str) -> list[str]:
    return [found.keys[i] for i in found.splits[split]]


# --- what every provider owes ---------------------------------------------------------------------------------------------------


def test_an_unknown_provider_is_a_usage_error_with_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown provider 'floder'.*embedded, folder, manifest, torchvision"):
        load(spec("floder"), Path("."))


@pytest.mark.parametrize("name", providers.PROVIDERS)
def test_every_registered_provider_answers_missing_and_load(name):
    module = providers.find(name)
    assert callable(module.missing) and callable(module.load)


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
    with pytest.raises(RingbenchError, match="has 2 classes .*; 3 were expected"):
        load(spec("folder", classes=3), tmp_path)
    assert load(spec("folder", classes=2), tmp_path).classes == ["a", "b"]


# --- embedded -------------------------------------------------------------------------------------------------------------------


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


# --- folder ---------------------------------------------------------------------------------------------------------------------


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
    tree(tmp_path, "a/1.png", "a/2.JPG", "a/deep/er/3.WebP", "b/1.jpeg", "a/.hidden.png", "a/._1.png", "a/.git/4.png", ".cache/x/1.png",
         "__MACOSX/a/1.png")  # fmt: skip
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


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    root = tree(tmp_path, "a/0.png", "b/0.png")
    (root / "a" / "gone.png").symlink_to(tmp_path / "nothing.png")
    with pytest.raises(Unavailable, match=r"a/gone\.png is a link to a file that is not there"):
        load(spec("folder"), tmp_path)


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


# --- fingerprints ---------------------------------------------------------------------------------------------------------------


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
    digits = load(spec("embedded", dataset="digits"), Path("."))

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
    digits = load(spec("embedded", dataset="digits"), Path("."))
    with pytest.raises(ValueError, match="read-only"):
        digits.images[0] = 0


# --- manifest -------------------------------------------------------------------------------------------------------------------


def manifest(root: Path, text: str | bytes, **fields) -> ImageSet:
    for n in range(9):
        put(root / f"{n}.png", n)
    (root / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(spec("manifest", manifest="list.csv", **fields), root)


def test_a_manifest_gives_labels_splits_and_groups_in_its_own_order(tmp_path):
    put(tmp_path / "in, folder" / "a b.png")
    text = 'path,label,split,group\n2.png,10,train,t1\n0.png,9,train,t2\n"in, folder/a b.png",10,test,t3\n1.png,9,val,t4\n3.png,9,test,t5\n'
    found = manifest(tmp_path, text)
    assert found.keys == ["2.png", "0.png", "in, folder/a b.png", "1.png", "3.png"]
    assert found.classes == ["9", "10"] and found.labels.tolist() == [1, 0, 1, 0, 0]
    assert {name: part.tolist() for name, part in found.splits.items()} == {"train": [0, 1], "val": [3], "test": [2, 4]}
    assert len(set(found.groups.tolist())) == 5 and found.groups.dtype == np.int64
    assert found.read(0)[0, 0].tolist() == [2, 253, 7]


@pytest.mark.parametrize(
    "text",
    [
        "path,label\n0.png,a\n1.png,b\n",
        "\ufeffpath,label\r\n0.png,a\r\n\r\n1.png,b\r\n\r\n",
        "label, path \n\n a ,0.png\n   \n,\nb, ./1.png ",
        '"path","label"\n"0.png","a"\n"1.png","b"',
    ],
    ids=["plain", "BOM and CRLF", "order, spaces and blank lines", "quoted"],
)
def test_the_dress_of_a_csv_file_does_not_matter(text, tmp_path):
    found = manifest(tmp_path, text)
    assert (found.keys, found.classes, found.labels.tolist()) == (["0.png", "1.png"], ["a", "b"], [0, 1])


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("", 1, ["header ''", "path,label"]),
        ("file,label\n0.png,a\n", 1, ["'file,label'", "path,label"]),
        ("path,label,spilt\n0.png,a,train\n", 1, ["'path,label,spilt'"]),
        ("path,label,label\n0.png,a,a\n", 1, ["'path,label,label'"]),
        ("path;label\n0.png;a\n", 1, ["'path;label'"]),
        ("path,label\n0.png,a\n1.png\n", 3, ["'1.png'", "path,label"]),
        ("path,label\n0.png,a\n1.png,b,c\n", 3, ["'1.png,b,c'"]),
        ("path,label\n0.png,\n", 2, ["'0.png,'"]),
        ("path,label,split\n0.png,a,train\n\n1.png,b,tset\n", 4, ["'tset'", "train, val, test"]),
        ("path,label\n0.png,a\n1.png,b\n./0.png,a\n", 4, ["'0.png'", "already in line 2"]),
        (
            "path,label,split,group\n0.png,a,train,x\n1.png,b,train,y\n2.png,a,test,x\n",
            4,
            ["group 'x'", "test here", "train above"],
        ),
        ("path,label\n0.png,a\nabsent.png,b\n", 3, ["absent.png is not there"]),
        ('path,label\n0.png,"a\n', 2, ["CSV"]),
        ('path,label\n0.png,"a"b\n', 2, ["CSV"]),
    ],
)
def test_what_is_wrong_with_a_manifest_is_one_sentence_with_the_line(text, line, parts, tmp_path):
    with pytest.raises(RingbenchError) as caught:
        manifest(tmp_path, text)
    message = str(caught.value)
    assert f"list.csv, line {line}:" in message and "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("path,label\n", Unavailable, "lists no images"),
        ("path,label,split\n0.png,a,test\n1.png,b,test\n", Unavailable, "has a test split only"),
        ("path,label,split\n0.png,a,train\n1.png,b,test\n2.png,a,test\n", RingbenchError, "no training image of class 'b'"),
        (b"path,label\n0.png,caf\xe9\n", RingbenchError, "not UTF-8"),
    ],
)
def test_a_manifest_that_gives_nothing_to_train_on_or_no_text_says_so(text, error, message, tmp_path):
    with pytest.raises(error, match=message):
        manifest(tmp_path, text)


def test_a_manifest_provider_without_a_manifest_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="needs `manifest`"):
        load(spec("manifest"), tmp_path)


def test_groups_of_a_manifest_stay_together_in_the_cut(tmp_path):
    rows = [f"{n}.png,{'ab'[n % 2]},g{n % 6}" for n in range(9)]
    found = manifest(tmp_path, "path,label,group\n" + "\n".join(rows))
    side = {i: name for name, part in found.splits.items() for i in part.tolist()}
    assert all(side[n] == side[n + 6] for n in range(3))


# --- torchvision ----------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def make_cifar(kind: type, root: Path, patch) -> None:
    base = root / kind.base_folder
    base.mkdir()
    label = "labels" if kind is datasets.CIFAR10 else "fine_labels"

    def write(name: str, content: dict) -> list[str]:
        (base / name).write_bytes(pickle.dumps(content))
        return [name, md5(base / name)]

    def batch() -> dict:
        return {"data": RNG.integers(0, 256, (6, 3072), np.uint8), label: [0, 1, 2, 2, 1, 0]}

    patch.setattr(kind, "train_list", [write(name, batch()) for name, _ in kind.train_list])
    patch.setattr(kind, "test_list", [write(name, batch()) for name, _ in kind.test_list])
    name, digest = write(kind.meta["filename"], {kind.meta["key"]: ["cat", "ant", "bee"]})
    patch.setattr(kind, "meta", {**kind.meta, "filename": name, "md5": digest})


def make_stl10(kind: type, root: Path, patch) -> None:
    base = root / "stl10_binary"
    base.mkdir()
    for part in ("train", "test"):
        RNG.integers(0, 256, (6, 3, 96, 96), np.uint8).tofile(base / f"{part}_X.bin")
        np.array([1, 2, 3, 1, 2, 3], np.uint8).tofile(base / f"{part}_y.bin")
    (base / "class_names.txt").write_text("cat\nant\nbee\n")
    (base / "unlabeled_X.bin").write_bytes(b"")
    for attribute in ("train_list", "test_list"):
        patch.setattr(kind, attribute, [[name, md5(base / name)] for name, _ in getattr(kind, attribute)])


def make_idx(kind: type, root: Path, patch) -> None:
    base = root / kind.__name__ / "raw"
    base.mkdir(parents=True)
    for part, n in (("train", 40), ("t10k", 20)):
        header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (n, 28, 28))
        (base / f"{part}-images-idx3-ubyte").write_bytes(header + RNG.bytes(n * 28 * 28))
        header = bytes([0, 0, 8, 1]) + n.to_bytes(4, "big")
        (base / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(i % 10 for i in range(n)))


def make_gtsrb(kind: type, root: Path, patch) -> None:
    for label in range(43):
        for track in range(3):
            for frame in range(2):
                path = put(root / f"gtsrb/GTSRB/Training/{label:05d}/{track:05d}_{frame:05d}.ppm", label)
                Image.open(path).save(path, "PPM")
    rows = [f"{label:05d}.ppm;{label}" for label in range(43)]
    for row in rows:
        put(root / "gtsrb/GTSRB/Final_Test/Images" / row.split(";")[0], 3)
    (root / "gtsrb/GT-final_test.csv").write_text("\n".join(["Filename;ClassId", *rows]))


def make_flowers(kind: type, root: Path, patch) -> None:
    from scipy.io import savemat

    base = root / "flowers-102"
    labels = np.tile(np.arange(1, 103), 3)
    for i in range(len(labels)):
        put(base / f"jpg/image_{i + 1:05d}.jpg", i % 256)
    order = np.arange(1, len(labels) + 1)
    savemat(base / "setid.mat", {"trnid": order[:102][::-1], "valid": order[102:204], "tstid": order[204:]})
    savemat(base / "imagelabels.mat", {"labels": labels})
    files = {key: (name, md5(base / name) if key != "image" else "") for key, (name, _) in kind._file_dict.items()}
    patch.setattr(kind, "_file_dict", files)


def make_aircraft(kind: type, root: Path, patch) -> None:
    base = root / "fgvc-aircraft-2013b" / "data"
    put(base / "images" / "0.jpg")
    (base / "variants.txt").write_text("707-320\nA 300\n")
    for n, split in enumerate(("train", "val", "test")):
        (base / f"images_variant_{split}.txt").write_text(f"00{n}1 A 300\n00{n}2 707-320\n")
        for k in (1, 2):
            put(base / "images" / f"00{n}{k}.jpg", 50 * n + k)


def make_dtd(kind: type, root: Path, patch) -> None:
    base = root / "dtd" / "dtd"
    (base / "labels").mkdir(parents=True)
    for n, split in enumerate(("train", "val", "test")):
        keys = [f"{c}/{c}_{n}{k}.jpg" for c in ("zig", "dot") for k in range(2)]
        tree(base / "images", *keys)
        (base / "labels" / f"{split}1.txt").write_text("\n".join(keys) + "\n")
        (base / "labels" / f"{split}2.txt").write_text("")


MAKERS = {
    "CIFAR10": make_cifar, "CIFAR100": make_cifar, "STL10": make_stl10, "MNIST": make_idx, "FashionMNIST": make_idx,
    "GTSRB": make_gtsrb, "Flowers102": make_flowers, "FGVCAircraft": make_aircraft, "DTD": make_dtd,
}  # fmt: skip


def test_every_set_of_the_table_is_tested():
    assert set(torchvision_provider.TABLE) == {*MAKERS, "ImageNet"}


@pytest.mark.parametrize("name", MAKERS)
def test_images_labels_and_official_splits_are_torchvisions_own(name, tmp_path, monkeypatch):
    kind = getattr(datasets, name)
    MAKERS[name](kind, tmp_path, monkeypatch)
    assert missing(spec("torchvision", dataset=name), tmp_path) is None
    found = load(spec("torchvision", dataset=name), tmp_path)
    for split, arguments in torchvision_provider.TABLE[name].splits.items():
        theirs = kind(tmp_path, **arguments)
        first = (
            0
            if split == "train"
            else found.keys.index(next(k for k, i in zip(found.keys, range(len(found)), strict=True) if i == start))
        )
        for i in range(len(theirs)):
            image, label = theirs[i]
            assert found.labels[first + i] == label
            np.testing.assert_array_equal(found.read(first + i), np.asarray(image.convert("RGB")))
        official = set(range(first, first + len(theirs)))
        if split == "train" and "val" not in torchvision_provider.TABLE[name].splits:
            assert set(found.trainval.tolist()) == official and len(found.splits["val"]) > 0
        else:
            assert set(found.splits[split].tolist()) == official
        start = first + len(theirs)
    assert start == len(found) == len(set(found.keys))
    if hasattr(theirs, "classes"):
        assert found.classes == list(theirs.classes)


@pytest.mark.parametrize("name", MAKERS)
def test_a_set_that_lacks_any_needed_file_is_missing_and_the_file_is_named(name, tmp_path, monkeypatch):
    MAKERS[name](getattr(datasets, name), tmp_path, monkeypatch)
    wanted = spec("torchvision", dataset=name)
    for needed in torchvision_provider.TABLE[name].needs:
        (tmp_path / needed).rename(tmp_path / "aside")
        assert str(tmp_path / needed) in missing(wanted, tmp_path)
        with pytest.raises(Unavailable):
            load(wanted, tmp_path)
        (tmp_path / "aside").rename(tmp_path / needed)
    assert missing(wanted, tmp_path) is None


@pytest.mark.parametrize("name", ["CIFAR10", "STL10", "Flowers102", "MNIST"])
def test_files_that_are_damaged_are_unavailable_with_the_place(name, tmp_path, monkeypatch):
    MAKERS[name](getattr(datasets, name), tmp_path, monkeypatch)
    damaged = tmp_path / torchvision_provider.TABLE[name].needs[-1]
    damaged.write_bytes(damaged.read_bytes()[:-5])
    with pytest.raises(Unavailable, match="incomplete or corrupt") as caught:
        load(spec("torchvision", dataset=name), tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_stl10_does_not_need_its_unlabelled_images(tmp_path, monkeypatch):
    make_stl10(datasets.STL10, tmp_path, monkeypatch)
    (tmp_path / "stl10_binary" / "unlabeled_X.bin").unlink()
    assert len(load(spec("torchvision", dataset="STL10"), tmp_path)) == 12


def test_mnist_is_read_compressed_too_and_its_test_half_alone_is_unavailable(tmp_path, monkeypatch):
    make_idx(datasets.MNIST, tmp_path, monkeypatch)
    plain = load(spec("torchvision", dataset="MNIST"), tmp_path)
    for path in (tmp_path / "MNIST" / "raw").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = load(spec("torchvision", dataset="MNIST"), tmp_path)
    assert (packed.fingerprint, packed.split_hash) == (plain.fingerprint, plain.split_hash)
    for path in (tmp_path / "MNIST" / "raw").glob("train*"):
        path.unlink()
    with pytest.raises(Unavailable, match="train-images-idx3-ubyte"):
        load(spec("torchvision", dataset="MNIST"), tmp_path)


def test_gtsrb_is_cut_by_track(tmp_path, monkeypatch):
    make_gtsrb(datasets.GTSRB, tmp_path, monkeypatch)
    found = load(spec("torchvision", dataset="GTSRB", classes=43), tmp_path)
    tracks = {split: {key.rsplit("_", 1)[0] for key in keys_of(found, split)} for split in ("train", "val")}
    assert len(tracks["val"]) == 43 and tracks["train"].isdisjoint(tracks["val"])
    assert len(tracks["train"]) == 2 * 43
    assert len(set(found.groups.tolist())) == 3 * 43 + 43


def test_imagenet_is_read_from_folders_and_its_validation_images_are_the_test_split(tmp_path):
    tree(tmp_path, *(f"{split}/n0{c}/{k}.JPEG" for split in ("train", "val") for c in range(3) for k in range(5)))
    found = load(spec("torchvision", dataset="ImageNet"), tmp_path)
    assert found.classes == ["n00", "n01", "n02"]
    assert keys_of(found, "test") == [f"val/n0{c}/{k}.JPEG" for c in range(3) for k in range(5)]
    assert len(found.splits["val"]) == 3 and all(found.keys[i].startswith("train/") for i in found.trainval)


def test_an_unknown_torchvision_set_is_a_usage_error_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="no set 'CIFAR11' of torchvision is known; known are CIFAR10, "):
        load(spec("torchvision", dataset="CIFAR11"), tmp_path)


def test_nothing_is_downloaded_unless_asked_and_a_failed_download_is_unavailable(tmp_path, monkeypatch, capsys):
    asked = []

    def refuse(self) -> None:
        asked.append(self.root)
        print("Downloading")
        raise OSError("no network")

    monkeypatch.setattr(datasets.CIFAR10, "download", refuse)
    wanted = spec("torchvision", dataset="CIFAR10", root="new")
    started = time.monotonic()
    with pytest.raises(Unavailable):
        load(wanted, tmp_path)
    assert not asked and time.monotonic() - started < 1
    with pytest.raises(Unavailable, match="could not be downloaded: no network") as caught:
        load(wanted, tmp_path, download=True)
    assert len(asked) == 1 and str(tmp_path / "new") in str(caught.value)
    assert capsys.readouterr().out == ""
    with pytest.raises(Unavailable, match="not here"):
        load(spec("torchvision", dataset="ImageNet"), tmp_path, download=True)


def test_a_set_that_is_here_is_not_downloaded_again(tmp_path, monkeypatch):
    make_cifar(datasets.CIFAR10, tmp_path, monkeypatch)
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: pytest.fail("asked the network"))
    assert len(load(spec("torchvision", dataset="CIFAR10"), tmp_path, download=True)) == 36


# --- real images ----------------------------------------------------------------------------------------------------------------


def test_real_traffic_signs_by_manifest_keep_their_tracks_apart(real_data, tmp_path):
    root = real_data("gtsrb_3frames")
    with (root / "GTSRB" / "split_by_track.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "tracks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", "group"])
        writer.writerows([row["path"], row["label"], row["split"], f"{row['label']}/{row['track']}"] for row in rows)
    found = load(spec("manifest", root=str(root), manifest=str(tmp_path / "tracks.csv"), classes=43), tmp_path)
    assert (len(found), len(set(found.groups.tolist()))) == (2664, 888)
    assert found.classes == [str(i) for i in range(43)]
    assert keys_of(found, "test") == [row["path"] for row in rows if row["split"] == "test"]
    of_split = {name: set(found.groups[part].tolist()) for name, part in found.splits.items()}
    assert of_split["train"].isdisjoint(of_split["val"]) and of_split["test"].isdisjoint(of_split["train"] | of_split["val"])
    assert set(found.labels[found.splits["val"]].tolist()) == set(range(43))
    assert abs(len(found.splits["val"]) / len(found.trainval) - 0.2) < 0.03
    assert found.read(0).shape == (*Image.open(root / rows[0]["path"]).size[::-1], 3)


def test_real_textures_by_folder_are_cut_sixty_four_sixteen_twenty_in_every_class(real_data, tmp_path):
    found = load(spec("folder", root=str(real_data("dtd10") / "dtd" / "images"), classes=10), tmp_path)
    assert {name: np.bincount(found.labels[part]).tolist() for name, part in found.splits.items()} == {
        "train": [77] * 4 + [77] * 6, "val": [19] * 10, "test": [24] * 10,
    }  # fmt: skip
    assert found.notes == [] and min(found.read(7).shape[:2]) == 128


def test_real_cifar10_by_folder_has_its_official_test_split(real_data, tmp_path):
    found = load(spec("folder", root=str(real_data("cifar10_jpeg")), classes=10), tmp_path)
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 40_000, "val": 10_000, "test": 10_000}
    assert np.bincount(found.labels[found.splits["val"]]).tolist() == [1000] * 10
    assert all(found.keys[i].startswith("test/") for i in found.splits["test"])
    assert found.classes == sorted(found.classes) and found.read(59_999).shape == (32, 32, 3)


def test_real_fashion_mnist_equals_torchvisions_reading_of_it(real_data, tmp_path):
    packed = real_data("fashion_mnist")
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (packed / "FashionMNIST" / "raw").glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    found = load(spec("torchvision", dataset="FashionMNIST", root=str(packed)), tmp_path)
    for split, part in ((True, found.trainval), (False, found.splits["test"])):
        theirs = datasets.FashionMNIST(tmp_path, train=split)
        np.testing.assert_array_equal(found.images[part], theirs.data.numpy())
        np.testing.assert_array_equal(found.labels[part], theirs.targets.numpy())
