"""torchvision's sets, in small copies of their layouts: images, labels and splits are those torchvision reads."""

import gzip
import hashlib
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from image_trees import keys_of, put, spec, tree
from PIL import Image
from torchvision import datasets

from imagesets.image_set import load, missing
from imagesets.providers import torchvision as torchvision_provider
from ringbench.errors import Unavailable, UsageError

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
    splits, seen = torchvision_provider.TABLE[name].splits, 0
    for split, arguments in splits.items():
        theirs = kind(tmp_path, **arguments)
        block = range(seen, seen + len(theirs))
        for i, k in zip(block, range(len(theirs)), strict=True):
            image, label = theirs[k]
            assert found.labels[i] == label
            np.testing.assert_array_equal(found.read(i), np.asarray(image.convert("RGB")))
        cut_by_us = split == "train" and "val" not in splits
        assert (found.trainval if cut_by_us else found.splits[split]).tolist() == list(block)
        seen += len(theirs)
    assert seen == len(found) == len(set(found.keys)) and len(found.splits["val"]) > 0
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
