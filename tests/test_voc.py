"""VOC layouts become COCO's form: corners, difficult objects, lists, and what is wrong with them."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bench import registry
from imagesets import annotated
from imagesets.annotated import AnnotatedSet
from imagesets.spec import ImagesetSpec, Part
from ringbench.errors import RingbenchError, Unavailable

OBJECT = (
    "<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{xmin}</xmin><ymin>5</ymin><xmax>24</xmax>"
    "<ymax>15</ymax></bndbox><part><name>head</name><bndbox><xmin>9</xmin></bndbox></part></object>"
)


def thing(name: str = "cat", difficult: str = "0", xmin: str = "5") -> str:
    return OBJECT.format(name=name, difficult=difficult, xmin=xmin)


def write(root: Path, year: str, lists: dict[str, str], objects: dict[str, str]) -> None:
    """A VOC folder of images 40 x 30: `lists` holds the lines of each list, `objects` the objects of each image."""
    base = root / "VOCdevkit" / year
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, lines in lists.items():
        (base / "ImageSets" / "Main" / f"{name}.txt").write_text(lines)
    for name, inside in objects.items():
        Image.new("RGB", (40, 30), "gray").save(base / "JPEGImages" / f"{name}.jpg")
        size = "<size><width>40</width><height>30</height><depth>3</depth></size>"
        (base / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{inside}</annotation>", "utf-8")


def load(root: Path, train: tuple[str, ...] = ("VOC2007/ImageSets/Main/trainval.txt",), **fields) -> AnnotatedSet:
    parts = [Part(annotations=name) for name in train]
    test = [Part(annotations="VOC2007/ImageSets/Main/test.txt")]
    spec = ImagesetSpec(name="voc", title="", provider="voc", root="VOCdevkit", train=parts, test=test, **fields)
    return annotated.load(spec, root)


@pytest.fixture
def voc07(tmp_path) -> Path:
    objects = {"000001": thing() + thing("dog", "1"), "000002": thing("cow"), "000003": thing("dog"), "000004": thing("zebra")}
    write(tmp_path, "VOC2007", {"trainval": "000001\n000002\n\n", "test": "000003  1\n000004 -1\n"}, objects)
    return tmp_path


def test_corners_counted_from_one_become_continuous_boxes_from_zero(voc07):
    images = load(voc07)
    assert images.style == "voc" and images.classes == ["cat", "cow", "dog"] and images.category_ids == [1, 2, 3]
    cat, dog, cow = images.splits["train"].annotations
    assert cat["bbox"] == [4, 4, 20, 11] and cat["area"] == 220 and (cat["difficult"], dog["difficult"]) == (0, 1)
    assert [a["category_id"] for a in (cat, dog, cow)] == [1, 3, 2] and [a["image_id"] for a in (cat, dog, cow)] == [1, 1, 2]
    assert all(a["iscrowd"] == 0 and "segmentation" not in a for a in (cat, dog, cow))
    image = images.splits["train"].images[0]
    assert (image["width"], image["height"]) == (40, 30)
    assert Path(image["file_name"]) == voc07 / "VOCdevkit/VOC2007/JPEGImages/000001.jpg"


def test_a_class_that_training_does_not_know_is_reported(voc07):
    test = load(voc07).splits["test"]
    assert [Path(image["file_name"]).stem for image in test.images] == ["000003", "000004"]  # lists of one class have two words
    assert test.report["annotation of an unknown category: left out"]["count"] == 1
    assert load(voc07, class_names=["zebra", "dog", "cow"]).splits["test"].annotations[1]["category_id"] == 1


def test_two_years_are_joined(voc07):
    write(voc07, "VOC2012", {"trainval": "2008_000001\n"}, {"2008_000001": thing("sheep")})
    both = load(voc07, ("VOC2007/ImageSets/Main/trainval.txt", "VOC2012/ImageSets/Main/trainval.txt"))
    assert [image["id"] for image in both.splits["train"].images] == [1, 2, 3] and "sheep" in both.classes
    assert len({annotation["id"] for annotation in both.splits["train"].annotations}) == 4


def annotations(root: Path, name: str) -> Path:
    return root / "VOCdevkit/VOC2007/Annotations" / f"{name}.xml"


@pytest.mark.parametrize(
    ("problem", "change", "images", "boxes"),
    [
        ("image without its XML file: left out", lambda path: path.unlink(), 1, 2),
        ("image whose XML file cannot be read: left out", lambda path: path.write_text("<annotation>"), 1, 2),
        ("box that is not four numbers: left out", lambda path: change_text(path, ">5<", ">five<"), 2, 2),
        ("box without area: left out", lambda path: change_text(path, ">5<", ">25<"), 2, 2),
        ("image of unstated size: taken from the file", lambda path: change_text(path, ">40<", ">0<"), 2, 3),
        ("image of unstated size: taken from the file", lambda path: change_text(path, ">40<", "><"), 2, 3),
        ("image of unstated size: taken from the file", lambda path: change_text(path, ">40<", ">wide<"), 2, 3),
        ("image of unstated size: taken from the file", lambda path: change_text(path, ">40<", ">-40<"), 2, 3),
        ("image whose XML file cannot be read: left out", lambda path: path.write_bytes(encoded("rot13", "ascii")), 1, 2),
        ("image whose XML file cannot be read: left out", lambda path: path.write_bytes(encoded("no-such", "ascii")), 1, 2),
        ("image whose XML file cannot be read: left out", lambda path: path.write_bytes(encoded("utf-8", "gbk", "狗")), 1, 2),
        ("image whose XML file cannot be read: left out", lambda path: (path.unlink(), path.mkdir()), 1, 2),
        ("annotation without a category: left out", lambda path: change_text(path, ">cow<", "> <"), 2, 2),
        ("difficult that is neither 0 nor 1: taken as 0", lambda path: change_text(path, ">0<", ">maybe<"), 2, 3),
        ("image of another size than stated: left out", lambda path: change_text(path, ">40<", ">30<"), 1, 2),
    ],
)
def test_each_kind_of_problem_is_counted_and_named(problem, change, images, boxes, voc07):
    change(annotations(voc07, "000002"))
    train = load(voc07, class_names=["cat", "cow", "dog"]).splits["train"]
    (name,) = train.report.keys() - {"image without annotation: kept"}
    assert name.startswith(problem) and train.report[name]["count"] == 1 and "000002" in train.report[name]["examples"][0]
    assert (len(train.images), len(train.annotations)) == (images, boxes)
    assert len(train.lost) == 2 - images


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_text("<annotation>")])
def test_images_without_readable_xml_count_among_those_that_cannot_be_used(change, voc07):
    write(voc07, "VOC2007", {"trainval": "000001\n000002\n000005\n"}, {"000005": thing()})
    change(annotations(voc07, "000002"))
    assert len(load(voc07).splits["train"].images) == 2
    change(annotations(voc07, "000005"))
    with pytest.raises(RingbenchError, match="only 1 of 3 images in train can be used: 2 x image w"):
        load(voc07)


def encoded(declared: str, encoding: str, name: str = "cow") -> bytes:
    """The XML of an image 40 x 30 with one object."""
    size = "<size><width>40</width><height>30</height></size>"
    text = f"<?xml version='1.0' encoding='{declared}'?><annotation>{size}{thing(name)}</annotation>"
    return text.encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("gb2312", "猫"),
        ("gbk", "貓"),
        ("shift_jis", "ねこ"),
        ("euc-kr", "고양이"),
        ("windows-1251", "кот"),
        ("iso-8859-1", "bête"),
        ("utf-8", "кот"),
        ("utf-8-sig", "кот"),
        ("utf-16", "кот"),
    ],
)
def test_xml_is_read_in_the_encoding_that_it_declares(encoding, name, voc07):
    annotations(voc07, "000002").write_bytes(encoded(encoding.removesuffix("-sig"), encoding, name))
    images = load(voc07)
    assert name in images.classes and not images.splits["train"].report


@pytest.mark.parametrize(
    ("written", "meant"), [("1", 1), ("1.0", 1), ("true", 1), ("TRUE", 1), (" 1 ", 1), ("", 0), ("0.0", 0), ("False", 0)]
)
def test_a_difficult_object_is_one_however_it_is_written(written, meant, voc07):
    write(voc07, "VOC2007", {}, {"000002": thing("cow", written)})
    train = load(voc07).splits["train"]
    assert train.annotations[-1]["difficult"] == meant and type(train.annotations[-1]["difficult"]) is int and not train.report


def test_objects_without_a_name_are_no_class(voc07):
    write(voc07, "VOC2007", {}, {"000002": thing("") + thing("cow").replace("<name>cow</name>", "") + thing("cow")})
    images = load(voc07)
    assert images.classes == ["cat", "cow", "dog"]
    assert images.splits["train"].report["annotation without a category: left out"]["count"] == 2


def test_a_size_may_have_a_decimal_point(voc07):
    change_text(annotations(voc07, "000002"), ">40<", ">40.0<")
    train = load(voc07).splits["train"]
    assert not train.report and [image["width"] for image in train.images] == [40, 40]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "ascii"])
def test_lists_are_read_in_the_encodings_that_editors_write(encoding, voc07):
    image_list(voc07).write_bytes("000001\r\n../Annotations/000002\r\n".encode(encoding))
    base = voc07 / "VOCdevkit/VOC2007"
    (base / "JPEGImages/000002.jpg").rename(base / "Annotations/000002.jpg")
    assert len(load(voc07).splits["train"].images) == 2


def test_a_list_in_another_encoding_is_refused_in_a_sentence(voc07):
    image_list(voc07).write_bytes("bête\n".encode("latin-1"))
    with pytest.raises(RingbenchError, match=r"trainval\.txt is no text in UTF-8 \(.* at byte 1\); save it as UTF-8"):
        load(voc07)


def image_list(root: Path) -> Path:
    return root / "VOCdevkit/VOC2007/ImageSets/Main/trainval.txt"


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_list_that_is_not_below_imagesets_is_told_like_any_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("1\n")
    parts = [Part(annotations="list.txt")]
    spec = ImagesetSpec(name="voc", title="", provider="voc", root=".", train=parts, test=parts)
    with pytest.raises(Unavailable, match="so that Annotations exists"):
        annotated.load(spec, Path())


def test_what_is_missing_is_unavailable_with_its_place(voc07):
    (voc07 / "VOCdevkit/VOC2007/ImageSets/Main/test.txt").unlink()
    with pytest.raises(Unavailable, match=r"VOCdevkit/VOC2007/ImageSets/Main/test\.txt exists"):
        load(voc07)


def test_a_set_without_any_box_is_hopeless(tmp_path):
    write(tmp_path, "VOC2007", {"trainval": "1\n", "test": "2\n"}, {"1": "", "2": thing()})
    with pytest.raises(RingbenchError, match="has no annotation in train that can be used"):
        load(tmp_path)


def test_a_split_of_difficult_objects_alone_is_hopeless(voc07):
    write(voc07, "VOC2007", {}, {"000001": thing(difficult="1"), "000002": thing("cow", "1")})
    with pytest.raises(RingbenchError, match=r"no object in train that a detector could learn .* all 2 are crowd or difficult"):
        load(voc07)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory) -> Path:
    objects = {name: thing("cow") + thing("dog") for name in "1234"}
    write(root := tmp_path_factory.mktemp("voc"), "VOC2007", {"trainval": "1\n2\n", "test": "3\n4\n"}, objects)
    return root


@given(st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_whatever_stands_in_xml_and_lists_comes_out_as_a_set_or_a_sentence(lasting, data):
    path = lasting / "VOCdevkit/VOC2007" / data.draw(st.sampled_from(["Annotations/2.xml", "ImageSets/Main/test.txt"]))
    sound = path.read_bytes()
    start = data.draw(st.integers(0, len(sound)))
    inserted = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"-", b"1e400", b"nan", b"<object/>", b"\xff\xfe"])))
    try:
        path.write_bytes(sound[:start] + inserted + sound[start + data.draw(st.integers(0, 30)) :])
        with contextlib.suppress(RingbenchError):
            assert load(lasting).fingerprint
    finally:
        path.write_bytes(sound)


def test_the_layout_of_voc07_with_real_photographs(real_data):
    images = annotated.load(registry.load().find("imagesets", "voc07"), real_data("voc07_layout"))
    assert {name: len(split.images) for name, split in images.splits.items()} == {"train": 62, "test": 59}
    assert len(images.classes) == 20 and not images.notes
    assert any(annotation["difficult"] for annotation in images.splits["test"].annotations)


def test_blood_cells_in_voc_form_need_one_entry_and_their_bad_boxes_are_told(real_data, tmp_path):
    (tmp_path / "registry.yaml").write_text(
        "imagesets:\n  bccd:\n    title: Blood cells\n    provider: voc\n    root: .\n    classes: 3\n"
        "    train: [{annotations: BCCD/ImageSets/Main/trainval.txt}]\n"
        "    test: [{annotations: BCCD/ImageSets/Main/test.txt}]\n"
    )
    images = annotated.load(registry.load(tmp_path / "registry.yaml").find("imagesets", "bccd"), real_data("bccd_voc"))
    assert images.classes == ["Platelets", "RBC", "WBC"]
    assert {name: len(split.images) for name, split in images.splits.items()} == {"train": 292, "test": 72}
    kinds = {kind: problem["count"] for split in images.splits.values() for kind, problem in split.report.items()}
    assert kinds == {"box at most one pixel wide or high: kept": 2}  # xmin is xmax in them
    assert any("2 x box at most one pixel" in note for note in images.notes)


@pytest.mark.parametrize("text", ["<annotations/>", '<annotation xmlns="http://x"><size/></annotation>'])
def test_xml_of_something_else_is_no_image_without_objects(tmp_path, text):
    from imagesets.providers.voc import _tree

    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(ValueError, match="expected an <annotation>"):
        _tree(tmp_path / "a.xml")


def test_names_with_spaces_are_whole_where_such_an_image_is_annotated(tmp_path):
    from imagesets.providers.voc import _names

    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "my image 1.xml").touch()
    (tmp_path / "list.txt").write_text("my image 1\n000005  1\n000007 -1\n")
    assert _names(tmp_path / "list.txt", tmp_path) == ["my image 1", "000005", "000007"]
