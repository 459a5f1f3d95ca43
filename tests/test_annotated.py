"""Images with boxes: what COCO and VOC layouts hold is read as meant, and whatever is wrong is counted, named or refused."""

import copy
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bench import registry
from imagesets import annotated, image_set, masks
from imagesets.annotated import AnnotatedSet
from imagesets.spec import ImagesetSpec, KeypointSpec, Part
from ringbench.errors import RingbenchError, Unavailable, UsageError

PARTS = {split: [Part(annotations=f"{split}.json", images=split)] for split in ("train", "test")}
KEYPOINTS = KeypointSpec(names=["a", "b"], flip_pairs=[["a", "b"]], sigmas=[0.1, 0.1])
Change = Callable[[dict, Path], object]


def photo(path: Path, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(path)


def document(root: Path, split: str) -> dict:
    """Four images of 40 x 30 with a box, a mask and two keypoints each, of classes 5 (cat) and 2 (dog)."""
    images, annotations = [], []
    for i in range(1, 5):
        photo(root / split / f"{i}.jpg")
        images.append({"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30})
        annotations.append(
            {
                "id": i,
                "image_id": i,
                "category_id": (5, 2)[i % 2],
                "bbox": [4, 5, 20, 10],
                "area": 150.0,
                "iscrowd": 0,
                "segmentation": [[4, 5, 24, 5, 24, 15, 4, 15]],
                "keypoints": [5, 6, 2, 20, 12, 1],
                "num_keypoints": 2,
            }
        )
    return {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "cat"}, {"id": 2, "name": "dog"}]}


def coco(root: Path, change: Change = lambda document, root: None, split: str = "train", **fields) -> AnnotatedSet:
    """That set, with `change` made to the document of one split."""
    for name in PARTS:
        content = document(root / "set", name)
        if name == split:
            change(content, root / "set" / name)
        (root / "set" / f"{name}.json").write_text(json.dumps(content))
    return annotated.load(ImagesetSpec(name="set", title="", provider="coco", **{**PARTS, **fields}), root)


def first(**changes) -> Change:
    return lambda document, folder: document["annotations"][0].update(changes)


def compressed(mask: np.ndarray) -> str:
    return pytest.importorskip("pycocotools.mask").encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()


def test_a_sound_set_is_read_as_it_is_and_nothing_is_reported(tmp_path):
    images = coco(tmp_path, keypoints=KEYPOINTS)
    assert images.classes == ["dog", "cat"] and images.category_ids == [2, 5] and images.style == "coco" and not images.notes
    train = images.splits["train"]
    assert [Path(image["file_name"]) for image in train.images] == [tmp_path / "set" / "train" / f"{i}.jpg" for i in range(1, 5)]
    assert train.report == {} and train.annotations == document(tmp_path / "set", "train")["annotations"]
    assert images.keypoints.flip_pairs == (("a", "b"),) and images.keypoints.sigmas == (0.1, 0.1)
    assert train.coco().keys() == {"images", "annotations", "categories"}


def cut_in_half(document: dict, folder: Path) -> None:
    path = folder / "1.jpg"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def padded(document: dict, folder: Path) -> None:
    path = folder / "1.jpg"
    path.write_bytes(path.read_bytes() + b"\0" * 100)


def sideways(document: dict, folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(folder / "1.jpg").save(folder / "1.jpg", exif=exif)
    document["images"][0].update(width=30, height=40)


def twice(document: dict, folder: Path) -> None:
    document["images"].append(dict(document["images"][0]))


def bomb(document: dict, folder: Path) -> None:
    """A PNG that says it has more pixels than PIL decodes."""
    photo(folder / "1.png")
    data = bytearray((folder / "1.png").read_bytes())
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    (folder / "1.jpg").write_bytes(data)
    document["images"][0].update(width=30_000, height=30_000)


def put(annotation: object) -> Change:
    return lambda document, folder: document["annotations"].__setitem__(0, annotation)


@pytest.mark.parametrize(
    ("problem", "change", "images", "annotations"),
    [
        ("image missing: left out", lambda document, folder: (folder / "1.jpg").unlink(), 3, 3),
        ("image broken or truncated: left out", cut_in_half, 3, 3),
        ("image broken or truncated: left out", lambda document, folder: (folder / "1.jpg").write_bytes(b""), 3, 3),
        ("image of another size than stated: left out", lambda document, folder: photo(folder / "1.jpg", (30, 40)), 3, 3),
        ("image of unstated size: taken from the file", lambda document, folder: document["images"][0].pop("width"), 4, 4),
        ("image of unstated size: taken from the file", lambda document, folder: document["images"][0].update(width="40"), 4, 4),
        ("image of unstated size: taken from the file", lambda document, folder: document["images"][0].update(width=None), 4, 4),
        ("image of unstated size: taken from the file", lambda document, folder: document["images"][0].update(width=-40), 4, 4),
        ("image of unstated size: taken from the file", lambda document, folder: document["images"][0].update(width=[40]), 4, 4),
        ("image of more pixels than are safe to decode: left out", bomb, 3, 3),
        ("annotation without keys and values: left out", put(None), 4, 3),
        ("annotation without keys and values: left out", put([1, 2]), 4, 3),
        ("image listed twice: counted once", twice, 4, 4),
        ("image without annotation: kept", lambda document, folder: document["annotations"].pop(), 4, 3),
        ("annotation of an unknown image: left out", first(image_id=77), 4, 3),
        ("annotation of an unknown image: left out", first(image_id=[1]), 4, 3),
        ("annotation of an unknown image: left out", first(image_id="1"), 4, 3),
        ("annotation of an unknown image: left out", first(image_id=1.0), 4, 3),
        ("annotation of an unknown image: left out", first(image_id=True), 4, 3),
        ("annotation of an unknown category: left out", first(category_id=77), 4, 3),
        ("annotation of an unknown category: left out", first(category_id={}), 4, 3),
        ("annotation of an unknown category: left out", first(category_id=2.0), 4, 3),
        ("annotation without a category: left out", first(category_id=None), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, 3]), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, float("nan"), 3]), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, "3", 4]), 4, 3),
        ("box that is not four numbers: left out", first(bbox=None), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, 3, True]), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, 3, 1e300]), 4, 3),
        ("box that is not four numbers: left out", first(bbox=[1, 2, 3, 10**400]), 4, 3),
        ("box without area: left out", first(bbox=[4, 5, 0, 10]), 4, 3),
        ("box without area: left out", first(bbox=[4, 5, 20, -1]), 4, 3),
        ("box outside its image: left out", first(bbox=[40, 5, 20, 10]), 4, 3),
        ("box at most one pixel wide or high: kept", first(bbox=[4, 5, 1, 10]), 4, 4),
        ("box partly outside its image: kept", first(bbox=[30, 5, 20, 10]), 4, 4),
        ("crowd: kept, to be ignored", first(iscrowd=1), 4, 4),
        ("iscrowd that is neither 0 nor 1: taken as 0", first(iscrowd="0"), 4, 4),
        ("area that is no number from 0 up: that of the box taken", first(area=-1), 4, 4),
        ("area that is no number from 0 up: that of the box taken", first(area=float("nan")), 4, 4),
        ("difficult that is neither 0 nor 1: taken as 0", first(difficult="false"), 4, 4),
        ("area that is no number from 0 up: that of the box taken", first(area="large"), 4, 4),
        ("area that is no number from 0 up: that of the box taken", first(area=10**400), 4, 4),
        ("broken mask: the box kept", first(segmentation=[[1, 1, 5, 5]]), 4, 4),
        ("broken mask: the box kept", first(segmentation=[[1, 1, 5, 5, 9, 9, 3]]), 4, 4),
        ("broken mask: the box kept", first(segmentation=[[1, 1, 5, 5, float("inf"), 9]]), 4, 4),
        ("broken mask: the box kept", first(segmentation={"size": [30, 40], "counts": [100, 200]}), 4, 4),
        ("broken mask: the box kept", first(segmentation={"size": [40, 30], "counts": [1200]}), 4, 4),
        ("broken mask: the box kept", first(segmentation={"size": [30, 40], "counts": "no run lengths"}), 4, 4),
        ("broken mask: the box kept", first(segmentation={"counts": [1200]}), 4, 4),
        ("keypoints that are not 2 x, y, v: the box kept", first(keypoints=[1, 2, 2]), 4, 4),
        ("keypoints that are not 2 x, y, v: the box kept", first(keypoints="none"), 4, 4),
        ("keypoints that are not 2 x, y, v: the box kept", first(keypoints=[1, 2, 2, 1, 2, 1e300]), 4, 4),
        ("annotation id used twice: numbered anew", first(id=2), 4, 4),
    ],
)
def test_each_kind_of_problem_is_counted_named_and_dealt_with(problem, change, images, annotations, tmp_path):
    found = coco(tmp_path, change, keypoints=KEYPOINTS)
    train = found.splits["train"]
    (name,) = [name for name in train.report if name.startswith(problem)]
    assert train.report[name]["count"] in (1, 2) and train.report[name]["examples"]  # an id that is used twice has two owners
    assert (len(train.images), len(train.annotations)) == (images, annotations)
    assert train.lost == [(name, str(tmp_path / "set" / "train" / "1.jpg"))] * (4 - images)
    assert found.splits["test"].report == {}
    told = " ".join(found.notes)
    assert (name in told) == (not name.startswith(("crowd", "image without annotation")))
    ids = [annotation["id"] for annotation in train.annotations]
    assert len(set(ids)) == len(ids) and min(ids) > 0


@pytest.mark.parametrize("box", [[4, 5, 0, 10], [40, 5, 20, 10]])
def test_the_test_split_keeps_every_box_that_the_official_evaluation_counts(box, tmp_path):
    split = coco(tmp_path, first(bbox=box), "test").splits["test"]
    assert len(split.annotations) == 4 and any("kept, as the official evaluation does" in problem for problem in split.report)


@pytest.mark.parametrize("id", [0, -1, None, "a", True, 1.0, [1], {}, 2**70])
def test_annotations_are_numbered_where_their_ids_are_no_handles(id, tmp_path):
    train = coco(tmp_path, first(id=id)).splits["train"]
    assert train.report == {} and [annotation["id"] for annotation in train.annotations] == [1, 2, 3, 4]


@pytest.mark.parametrize("change", [padded, sideways, first(id=0), first(segmentation={"size": [30, 40], "counts": [600, 600]})])
def test_what_only_looks_wrong_is_kept_without_a_word(change, tmp_path):
    train = coco(tmp_path, change).splits["train"]
    assert train.report == {} and len(train.images) == 4 and min(annotation["id"] for annotation in train.annotations) == 1


def test_compressed_run_lengths_are_read(tmp_path):
    mask = np.random.default_rng(0).random((30, 40)) < 0.5
    whole, cut = compressed(mask), compressed(mask)[:-1]
    sound = first(segmentation={"size": [30, 40], "counts": whole})
    assert coco(tmp_path / "a", sound).splits["train"].report == {}
    broken = first(segmentation={"size": [30, 40], "counts": cut})
    assert coco(tmp_path / "b", broken).splits["train"].report["broken mask: the box kept"]["count"] == 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_object_without_a_mask_or_with_a_broken_one_keeps_its_box(split, tmp_path):
    def change(document: dict, folder: Path) -> None:
        for annotation, mask in zip(document["annotations"], ([], None, [[1, 1, 5, 5]]), strict=False):
            annotation["segmentation"] = mask

    found = coco(tmp_path, change, split, keypoints=KEYPOINTS).splits[split]
    assert [annotation["bbox"] for annotation in found.annotations] == [[4, 5, 20, 10]] * 4
    assert ["segmentation" in annotation for annotation in found.annotations] == [False, False, False, True]
    assert list(found.report) == ["broken mask: the box kept"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_object_with_malformed_keypoints_keeps_its_box_and_mask_and_has_no_visible_keypoint(split, tmp_path):
    annotation = coco(tmp_path, first(keypoints=[1, 2, 2, 3]), split, keypoints=KEYPOINTS).splits[split].annotations[0]
    assert annotation["keypoints"] == [0] * 6 and annotation["num_keypoints"] == 0
    assert annotation["bbox"] == [4, 5, 20, 10] and "segmentation" in annotation


@pytest.mark.parametrize("none", [[], None])
def test_a_category_may_say_that_it_has_no_keypoints(none, tmp_path):
    found = coco(tmp_path, lambda document, folder: document["categories"][0].update(keypoints=none), keypoints=KEYPOINTS)
    assert not found.notes and found.keypoints.names == ("a", "b")


def test_a_crowd_flag_that_is_null_is_none_and_counts_for_training_as_for_the_test(tmp_path):
    found = coco(tmp_path, first(iscrowd=None), keypoints=KEYPOINTS).splits["train"]
    assert found.annotations[0]["iscrowd"] == 0 and not found.report


@pytest.mark.parametrize("records", ["images", "categories"])
@pytest.mark.parametrize("id", ["img1", 1.0, None, True, 2**53, 2**70, [1], {}])
def test_an_id_that_is_no_whole_number_stops_before_anything_is_trained(tmp_path, id, records):
    with pytest.raises(RingbenchError, match=r"train\.json: the id of an? \w+ is .*; expected a whole number below 2\^53"):
        coco(tmp_path, lambda document, folder: document[records][0].update(id=id), keypoints=KEYPOINTS)


def test_renumbered_images_are_another_set_since_predictions_name_their_numbers(tmp_path):
    def swapped(document: dict, folder: Path) -> None:
        new = {1: 2, 2: 1}
        for image in document["images"]:
            image["id"] = new.get(image["id"], image["id"])
        for annotation in document["annotations"]:
            annotation["image_id"] = new.get(annotation["image_id"], annotation["image_id"])

    before = coco(tmp_path, keypoints=KEYPOINTS)
    assert coco(tmp_path, swapped, keypoints=KEYPOINTS).fingerprint != before.fingerprint


def test_a_set_with_boxes_alone_is_completed(tmp_path):
    def boxes_only(document: dict, folder: Path) -> None:
        document["annotations"] = [
            {"id": a["id"], "image_id": a["image_id"], "category_id": a["category_id"], "bbox": a["bbox"], "segmentation": []}
            for a in document["annotations"]
        ]

    annotation = coco(tmp_path, boxes_only, keypoints=KEYPOINTS).splits["train"].annotations[0]
    assert annotation["area"] == 200 and annotation["iscrowd"] == 0 and "segmentation" not in annotation
    assert annotation["keypoints"] == [0] * 6 and annotation["num_keypoints"] == 0


def drop_images(document: dict, folder: Path) -> None:
    for path in folder.glob("*.jpg"):
        path.unlink()


def other_file(document: dict, folder: Path) -> None:
    document["images"][1]["id"] = 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_file, "two images of train have the id 1: .*1.jpg, .*2.jpg"),
        (lambda document, folder: document.pop("categories"), "is no COCO document: expected the lists images, annotations, cat"),
        (lambda document, folder: document["images"][0].pop("id"), "the id of an image is empty; expected a whole number"),
        (lambda document, folder: document["images"].append(None), "train.json is no COCO document: an image in it is empty"),
        (lambda document, folder: document["categories"].append([5, "cat"]), "is no COCO document: a category in it is a list"),
        (
            lambda document, folder: document["images"][1].update(file_name=None),
            r"train\.json: the file_name of an image, id 2, is empty; expected a text",
        ),
        (
            lambda document, folder: document["images"][1].update(file_name=["2.jpg"]),
            r"train\.json: the file_name of an image, id 2, is a list; expected a text",
        ),
        (
            lambda document, folder: document["categories"][0].update(name=7),
            r"train\.json: the name of a category, id 5, is the number 7; expected a text",
        ),
        (
            lambda document, folder: document["categories"][0].update(name=" "),
            "the name of a category, id 5, is .*expected a text",
        ),
        (
            lambda document, folder: [annotation.update(iscrowd=1) for annotation in document["annotations"]],
            "no object in train that a detector could learn or be asked to find: all 4 are crowd or difficult",
        ),
        (lambda document, folder: document["images"].clear(), "only 0 of 0 images in train can be used: there is none"),
        (
            lambda document, folder: document["categories"][0].update(keypoints=7),
            "the keypoints of 'cat' .* are 7; the registry's",
        ),
        (lambda document, folder: document["annotations"].clear(), "has no annotation in train that can be used"),
        (lambda document, folder: document["categories"][0].update(id=9), "two categories of one name"),
        (lambda document, folder: document["categories"][0].update(name="cow"), "category 5 is 'cow' and, in test, 'cat'"),
        (
            lambda document, folder: [(folder / f"{i}.jpg").unlink() for i in (1, 2, 3)],
            r"only 1 of 4 images in train can be used: 3 x image missing",
        ),
        (lambda document, folder: document["categories"][0].update(keypoints=["x"]), "the keypoints of 'cat' .* the registry's"),
    ],
)
def test_hopeless_annotations_stop_with_a_sentence(change, sentence, tmp_path):
    with pytest.raises(RingbenchError, match=sentence):
        coco(tmp_path, change, keypoints=KEYPOINTS)


def test_what_is_missing_is_unavailable_and_the_sentence_has_the_place(tmp_path):
    with pytest.raises(Unavailable, match=r"the images of train are not here; put them so that .*train.1\.jpg exists"):
        coco(tmp_path, drop_images)
    (tmp_path / "set" / "test.json").unlink()
    spec = ImagesetSpec(name="set", title="", provider="coco", source="https://example.org", **PARTS)
    with pytest.raises(Unavailable, match=r"https://example.org.* so that .*test\.json exists") as caught:
        annotated.load(spec, tmp_path)
    assert annotated.missing(spec, tmp_path) == str(caught.value)


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000, '{"images": ' + "9" * 5000 + "}"])
def test_a_file_that_is_no_json_is_named(text, tmp_path):
    coco(tmp_path)
    (tmp_path / "set" / "train.json").write_text(text, "latin-1")
    with pytest.raises(RingbenchError, match=r"train\.json is not readable as JSON"):
        annotated.load(ImagesetSpec(name="set", title="", provider="coco", **PARTS), tmp_path)


def test_the_entry_chooses_classes_and_their_order(tmp_path):
    chosen = coco(tmp_path, class_names=["cat"])
    assert chosen.classes == ["cat"] and chosen.splits["train"].report == {
        "image without annotation: kept": {"count": 2, "examples": [str(tmp_path / f"set/train/{i}.jpg") for i in (1, 3)]}
    }
    assert coco(tmp_path, class_names=["cat", "dog"]).category_ids == [5, 2]
    with pytest.raises(RingbenchError, match="has no class 'cow'; its annotations have dog, cat"):
        coco(tmp_path, class_names=["cow"])
    with pytest.raises(RingbenchError, match=r"has 2 classes .*; 80 were expected"):
        coco(tmp_path, classes=80)


def test_other_sigmas_or_mirrored_pairs_are_another_set_since_numbers_depend_on_them(tmp_path):
    base = coco(tmp_path, keypoints=KEYPOINTS)
    for change in ({"sigmas": [0.5, 0.5]}, {"flip_pairs": []}):
        assert coco(tmp_path, keypoints=KEYPOINTS.model_copy(update=change)).fingerprint != base.fingerprint


def test_fingerprint_and_split_hash_say_what_changed(tmp_path):
    base = coco(tmp_path / "a")
    moved, masked = coco(tmp_path / "b"), coco(tmp_path / "a", first(segmentation=[[4, 5, 24, 5, 24, 15]]))
    assert (moved.fingerprint, moved.split_hash) == (base.fingerprint, base.split_hash)
    assert masked.fingerprint != base.fingerprint and masked.split_hash == base.split_hash
    boxed = coco(tmp_path / "a", first(bbox=[4, 5, 20, 11]))
    assert boxed.fingerprint != base.fingerprint and boxed.split_hash != base.split_hash
    photo(tmp_path / "a/set/train/1.jpg")
    with (tmp_path / "a/set/train/1.jpg").open("ab") as file:
        file.write(b"\0\0")
    again = annotated.load(base.spec, tmp_path / "a")
    assert again.fingerprint != boxed.fingerprint and again.split_hash == boxed.split_hash


def test_boxes_and_labels_are_not_taken_for_each_other(tmp_path):
    with pytest.raises(UsageError, match="has boxes, not a label for each image"):
        image_set.load(ImagesetSpec(name="set", title="", provider="coco", **PARTS), tmp_path)
    with pytest.raises(UsageError, match="has no boxes: they come from the providers coco, voc and shapes"):
        annotated.load(ImagesetSpec(name="set", title="", provider="folder"), tmp_path)
    for provider, example in (("coco", "FILE, images: FOLDER"), ("voc", "VOC2007/ImageSets/Main/trainval.txt")):
        with pytest.raises(UsageError, match=f"needs `train` and `test`, each a list such as .{{annotations: {example}}}"):
            annotated.load(ImagesetSpec(name="set", title="", provider=provider), tmp_path)


def test_real_coco_images_are_read_whole(real_data):
    images = annotated.load(registry.load().find("imagesets", "coco"), real_data("coco_mini200"))
    assert {name: (len(s.images), len(s.annotations)) for name, s in images.splits.items()} == {
        "train": (100, 1141), "test": (100, 891),
    }  # fmt: skip
    assert [s.report["crowd: kept, to be ignored"]["count"] for s in images.splits.values()] == [13, 10]
    assert len(images.classes) == 80 and images.classes[0] == "person" and images.category_ids[-1] == 90
    persons = annotated.load(registry.load().find("imagesets", "coco_person"), real_data("coco_mini200"))
    assert persons.classes == ["person"] and len(persons.keypoints.names) == 17
    assert sum(a["num_keypoints"] > 0 for s in persons.splits.values() for a in s.annotations) == 255


def write_registry(path: Path, entry: str) -> Path:
    path.write_text("imagesets:\n  mine:\n    title: Mine\n    provider: coco\n" + entry)
    return path


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("    train: [{annotation: a.json}]\n", 'unknown key "annotation" in "train.0".*did you mean "annotations"'),
        ("    keypoints: {names: [a], sigma: [0.1]}\n", 'unknown key "sigma" in "keypoints".*did you mean "sigmas"'),
        ("    keypoints: {names: [a, b], sigmas: [0.1]}\n", "one sigma for each of 2 different names"),
        ("    keypoints: {names: [a, b], sigmas: [1, 1], flip_pairs: [[a, c]]}\n", "flip_pairs of two different names"),
        ("    keypoints: {names: [a, b], sigmas: [1, 0]}\n", "greater than 0"),
    ],
)
def test_a_slip_in_a_registry_entry_is_found_in_its_line(entry, sentence, tmp_path):
    _, problems = registry.check(write_registry(tmp_path / "registry.yaml", entry))
    assert len(problems) == 1 and problems[0].line == 5
    with pytest.raises(UsageError, match=sentence):
        registry.load(tmp_path / "registry.yaml")


def test_an_image_in_train_and_test_is_refused_whatever_its_path(tmp_path):
    def link(document: dict, folder: Path) -> None:
        (folder / "1.jpg").unlink()
        (folder / "1.jpg").symlink_to(folder.parent / "train" / "2.jpg")

    with pytest.raises(RingbenchError, match=r"train/2\.jpg in train and .*test/1\.jpg in test are one file"):
        coco(tmp_path, link, "test")


def test_a_png_that_is_stored_sideways_is_as_large_as_it_is_upright(tmp_path):
    def sideways(document: dict, folder: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        with Image.open(folder / "1.jpg") as image:
            image.transpose(Image.Transpose.ROTATE_90).save(folder / "1.png", exif=exif)
        document["images"][0]["file_name"] = "1.png"

    assert not coco(tmp_path, sideways).notes


# --- whatever a document holds


@pytest.fixture(scope="module")
def lasting(tmp_path_factory) -> tuple[Path, dict]:
    """A set whose files stay, and the document of its training."""
    root = tmp_path_factory.mktemp("lasting")
    documents = {split: document(root / "set", split) for split in PARTS}
    for split, content in documents.items():
        (root / "set" / f"{split}.json").write_text(json.dumps(content))
    documents["train"]["annotations"][1]["segmentation"] = {"size": [30, 40], "counts": [600, 600]}
    return root, documents["train"]


ODD = [
    *(None, True, False, 0, -1, 2, 1.0, 0.5, 2**31, 2**63, 10**400, 1e9, -1e9, 1e300, float("nan"), float("inf")),
    *("", "1", "cat", "\ud800", "a\0b", "../1.jpg"),
    *([], [[]], [None], [1, 2], [1e9] * 6, {}, {"id": 1}, {"counts": [], "size": []}),
]


@given(st.data())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_whatever_a_document_holds_comes_out_as_a_set_that_can_be_used_or_as_a_sentence(lasting, data):
    root, sound = lasting
    content = {"document": copy.deepcopy(sound)}
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = content, "document"
        for _ in range(data.draw(st.integers(1, 5))):
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
            key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if place is not content and data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    (root / "set" / "train.json").write_text(json.dumps(content["document"]))
    try:
        found = annotated.load(ImagesetSpec(name="set", title="", provider="coco", keypoints=KEYPOINTS, **PARTS), root)
    except RingbenchError:
        return
    assert found.fingerprint
    sizes = {image["id"]: (image["height"], image["width"]) for image in found.splits["train"].images}
    for annotation in found.splits["train"].annotations:
        assert annotation["bbox"][0] + annotation["area"] + sum(annotation["keypoints"]) < math.inf
        if mask := annotation.get("segmentation"):
            assert masks.pixels(mask, *sizes[annotation["image_id"]]).shape == sizes[annotation["image_id"]]


def test_an_image_of_which_a_detectors_resize_leaves_nothing_is_left_out_and_named(tmp_path):
    def thin(document, folder):
        Image.new("RGB", (3000, 1)).save(folder / "1.jpg")
        document["images"][0].update(width=3000, height=1)

    found = coco(tmp_path, thin, "test").splits["test"]
    assert [problem for problem, _ in found.lost] == ["image more than 250 times as long as it is wide: left out"]


def test_a_file_under_two_ids_is_told(tmp_path):
    def twice(document, folder):
        document["images"].append(document["images"][0] | {"id": 99})

    assert any("1 x image file under several ids: counted for each" in note for note in coco(tmp_path, twice).notes)
