"""Image sets listed in a CSV file: read exactly, or refused with the line that is wrong."""

import csv
from pathlib import Path

import numpy as np
import pytest
from image_trees import keys_of, put, spec
from PIL import Image

from imagesets.image_set import ImageSet, load
from ringbench.errors import RingbenchError, Unavailable, UsageError


def manifest(root: Path, text: str | bytes, **fields) -> ImageSet:
    for n in range(9):
        put(root / f"{n}.png", n)
    (root / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(spec("manifest", manifest="list.csv", **fields), root)


def test_a_manifest_gives_labels_splits_and_groups_in_its_own_order(tmp_path):
    put(tmp_path / "in, folder" / "a b.png")
    rows = ["2.png,10,train,t1", "0.png,9,train,t2", '"in, folder/a b.png",10,test,t3', "1.png,9,val,t4", "3.png,9,test,t5"]
    found = manifest(tmp_path, "\n".join(["path,label,split,group", *rows]))
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
        ("path,label\n0.png,a\n/elsewhere/1.png,b\n", 3, ["'/elsewhere/1.png' is an absolute path", "relative to"]),
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


@pytest.mark.parametrize("other", ["../here/0.png", "link/0.png", "./x/../../here/0.png"])
def test_one_file_under_two_spellings_in_two_splits_is_an_error_that_names_both(tmp_path, other):
    root = tmp_path / "here"
    root.mkdir()
    (root / "x").mkdir()
    (root / "link").symlink_to(root)
    found = manifest(root, f"path,label,split\n0.png,a,train\n1.png,b,train\n2.png,b,test\n{other},a,test\n")
    with pytest.raises(RingbenchError, match=r"0\.png in train and \S+/0\.png in test are one file"):
        found.require_measurable()


def test_a_manifest_provider_without_a_manifest_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="needs `manifest`"):
        load(spec("manifest"), tmp_path)


def test_groups_of_a_manifest_stay_together_in_the_cut(tmp_path):
    rows = [f"{n}.png,{'ab'[n % 2]},g{n % 6}" for n in range(9)]
    found = manifest(tmp_path, "path,label,group\n" + "\n".join(rows))
    side = {i: name for name, part in found.splits.items() for i in part.tolist()}
    assert all(side[n] == side[n + 6] for n in range(3))


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
