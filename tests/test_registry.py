"""The registry: what the packaged one holds, how names are found, and one sentence with file and line for every slip."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import registry
from ringbench import yaml_lines
from ringbench.errors import UsageError

NET = """\
backbones:
  net:
    title: A net
    arch: resnet18
    source: random
    pipeline: rgb|resize(64,bilinear)|scale01|normalize(dataset)
"""
SETS = """\
imagesets:
  pets:
    title: Pets
    provider: folder
protocols:
  quick@1:
    title: quick
    probe: knn
    level: pooled
    source: none
"""


def problems(text: str | bytes, name: str = "registry.yaml") -> list[str]:
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [str(problem) for problem in registry.check(path)[1]]


# --- what is packaged


def test_every_task_and_backbone_of_the_contract_is_there():
    known = registry.load()
    words = "digits cifar10 cifar100 stl10 imagenet mnist fashion_mnist traffic_sign vgg_flower aircraft dtd"
    assert {f"{imageset}_{kind}" for imageset in words.split() for kind in ("linear", "logreg", "knn")} <= set(known.tasks)
    assert {"coco_det", "coco_seg", "coco_keypoint", "voc07_det", "shapes_det"} <= set(known.tasks)
    words = "random_resnet18 random_resnet50 iring_imagenet torchvision_resnet18"
    assert [name for name in known.backbones if name in words.split()] == words.split()
    assert known.find("backbones", "irings_imagenet").name == "iring_imagenet"
    assert {task.protocol for task in known.match("tasks", ["*_linear"])} == {"ring-linear@1"}
    assert {task.protocol for task in known.match("tasks", ["*_logreg"])} == {"logreg@1"}
    assert {task.protocol for task in known.match("tasks", ["*_knn"])} == {"knn@1"}


def test_the_protocols_hold_the_papers_values():
    protocols = registry.load().protocols
    assert protocols["ring-linear@1"].level == "prepool"
    paper = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "epochs": 100}
    assert protocols["ring-linear@1"].settings == paper | {"batch_size": 256}
    assert protocols["logreg@1"].settings == {"l2": [1e-6, 1e5, 45]}
    assert protocols["knn@1"].settings == {"k": [10, 20, 100, 200], "temperature": 0.07}


def test_every_packaged_protocol_is_one_its_probe_accepts():
    from transfer import probes
    from transfer.detection.settings import settings
    from transfer.spec import DETECTION

    for protocol in registry.load().protocols.values():
        if protocol.probe == DETECTION:
            settings(protocol.settings)
        else:
            probes.make(protocol.probe, protocol.settings, seed=0, device="cpu")


@pytest.mark.parametrize(
    "name", [name for name in registry.check(None)[0].backbones if name.startswith("torchvision_")], ids=lambda name: name[12:]
)
def test_torchvision_entries_agree_with_torchvision(name: str):
    from torchvision.models import get_model_weights

    spec = registry.load().backbones[name]
    official = get_model_weights(spec.arch)[spec.title.split()[-1]]
    assert official.meta["_metrics"]["ImageNet-1K"]["acc@1"] == spec.published[0].score
    transform = official.transforms()
    assert spec.source == official.url
    assert spec.source.endswith(f"-{spec.sha256}.pth")
    resize, crop = transform.resize_size[0], transform.crop_size[0]
    filter = transform.interpolation.value
    assert spec.pipeline == f"rgb|resize({resize},{filter})|center_crop({crop})|scale01|normalize(imagenet)"
    assert (transform.mean, transform.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def test_torchvision_image_sets_name_classes_that_torchvision_has():
    import torchvision.datasets

    named = [spec for spec in registry.load().imagesets.values() if spec.provider == "torchvision"]
    assert len(named) == 10
    assert all(hasattr(torchvision.datasets, spec.dataset) for spec in named)


# --- finding


@pytest.fixture
def known() -> registry.Registry:
    return registry.load()


def test_globs_match_names_and_aliases_in_the_registrys_order_and_once(known):
    assert [spec.name for spec in known.match("backbones", ["irings_*", "iring_*", "random_*"])] == [
        "random_resnet18",
        "random_resnet50",
        "iring_imagenet",
        "random_resnet18x0.5",
    ]


@pytest.mark.parametrize("word, near", [("random_resnet_18", "random_resnet18"), ("irings_imagnet", "irings_imagenet")])
def test_an_unknown_name_is_answered_with_the_nearest(known, word, near):
    with pytest.raises(UsageError, match=f'unknown backbone "{word}".*"{near}"') as caught:
        known.find("backbones", word)
    assert caught.value.exit_code == 2


def test_a_glob_that_matches_nothing_is_an_error(known):
    with pytest.raises(UsageError, match=r'unknown task "digit_\*"; did you mean "digits_'):
        known.match("tasks", ["digits_knn", "digit_*"])


def test_locate_searches_every_section(known):
    assert [known.locate(name)[0] for name in ("irings_imagenet", "dtd", "knn@1", "dtd_knn")] == list(registry.SECTIONS)
    with pytest.raises(UsageError, match=r'nothing is called "dtd_nkn".*"dtd_knn"'):
        known.locate("dtd_nkn")


# --- the overlay


def test_the_overlay_is_the_working_folders_else_the_homes_else_none(isolated_home):
    assert registry.overlay() is None
    isolated_home.mkdir()
    (isolated_home / "registry.yaml").write_text(NET)
    assert registry.overlay() == isolated_home / "registry.yaml"
    Path("registry.yaml").write_text(NET.replace("net:", "other:"))
    assert registry.overlay() == Path.cwd() / "registry.yaml"
    assert "other" in registry.load().backbones and "net" not in registry.load().backbones
    assert "net" in registry.load(isolated_home / "registry.yaml").backbones


def test_the_packaged_file_is_not_its_own_overlay(monkeypatch):
    monkeypatch.chdir(registry.PACKAGED.parent)
    assert registry.overlay() is None
    assert registry.check(registry.PACKAGED)[1] == []


@pytest.mark.parametrize("path", [registry.PACKAGED, registry.ENCODERS], ids=lambda path: path.name)
def test_a_copy_of_a_packaged_file_adds_nothing_and_is_no_conflict(path):
    assert registry.check(path)[1] == []
    assert problems(path.read_bytes()) == []


def test_timms_entries_agree_with_timm():
    from timm.models.resnet import default_cfgs

    for arch in ("resnet18", "resnet34", "resnet50"):
        spec, official = registry.load().backbones[f"timm_a1_{arch}"], default_cfgs[arch].cfgs["a1_in1k"]
        assert spec.source == official.url
        side = int(224 / official.crop_pct)
        assert spec.pipeline == f"rgb|resize({side},{official.interpolation})|center_crop(224)|scale01|normalize(imagenet)"
        assert spec.licence.lower() == official.license


def test_every_encoder_of_others_says_where_it_stands_and_its_digest_stands_in_its_name():
    known = registry.load()
    others = [spec for spec in known.backbones.values() if known.places[spec.name].rpartition(":")[0].endswith("encoders.yaml")]
    assert len(others) == 90 and len({spec.source for spec in others}) == 90
    for spec in others:
        assert spec.licence and spec.origin and spec.published and spec.format != "auto"
        assert spec.sha256 is None or f"-{spec.sha256}." in spec.source
        assert all(0 < score.score < 100 for score in spec.published)


def test_every_encoder_of_others_is_one_its_format_can_hold():
    """A file of that family, of that architecture, resolves to the stem and stream the entry states."""
    from layouts import LAYOUTS

    by_format = {layout.format: layout for layout in LAYOUTS.values()}
    from backbones import formats

    for spec in registry.load().backbones.values():
        if spec.format == "auto":
            continue
        usual = formats.get(spec.format)
        assert spec.format in by_format, spec.name
        assert spec.stem in (usual.large, usual.streams), spec.name
        assert (spec.stem == usual.streams) == (spec.arch == "resnet50x0.5"), spec.name


def test_an_overlay_cannot_change_a_packaged_entry():
    found = problems(NET.replace("net:", "random_resnet18:"))
    assert len(found) == 1
    assert found[0].startswith('registry.yaml:2: backbone "random_resnet18": "random_resnet18" is taken by backbone')
    assert f"{registry.PACKAGED}:" in found[0]


def test_relative_checkpoints_belong_to_the_folder_of_the_file_that_names_them(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my.yaml").write_text(NET.replace("source: random", "source: weights/net.pth"))
    monkeypatch.chdir("/")
    spec = registry.load(folder / "my.yaml").backbones["net"]
    assert spec.source == str(folder / "weights" / "net.pth")


@pytest.mark.parametrize("source", ["random", "recipe:iring_imagenet", "https://example.org/a/net.pth"])
def test_sources_that_are_no_path_stay_as_they_are(source):
    assert problems(NET.replace("source: random", f"source: {source}")) == []
    assert registry.load().backbones["net"].source == source


def test_a_family_is_a_task_for_each_member_and_takes_the_titles_of_its_parts():
    tasks = 'tasks:\n  "{imageset}_by_{protocol}":\n    imageset: [pets, dtd]\n    protocol: [quick@1, knn@1]\n'
    assert problems(SETS + tasks) == []
    known = registry.load()
    assert [name for name in known.tasks if "_by_" in name] == [
        "pets_by_quick@1",
        "pets_by_knn@1",
        "dtd_by_quick@1",
        "dtd_by_knn@1",
    ]
    assert known.tasks["pets_by_quick@1"].title == "Pets, quick"


def test_tasks_and_reference_scores_may_use_aliases_and_end_up_under_the_real_names():
    text = SETS.replace("title: Pets", "title: Pets\n    aliases: [dogs]")
    text += "tasks:\n  pets_q:\n    title: t\n    aliases: [dogs_q]\n    imageset: dogs\n    protocol: quick@1\n"
    text += NET + "    reference: {dogs_q: {metric: top1, score: 67.7, std: 0.3, source: a paper}}\n"
    assert problems(text) == []
    known = registry.load()
    assert known.tasks["pets_q"].imageset == "pets"
    assert known.backbones["net"].reference["pets_q"].score == 67.7


# --- every slip, in one sentence with file and line


def line(text: str, number: int, new: str) -> str:
    lines = text.splitlines()
    lines[number - 1] = new
    return "\n".join(lines) + "\n"


TWO = NET.partition("\n")[2].replace("net:", "two:")
SLIPS = {
    "a misspelt key": (
        NET.replace("pipeline:", "pipline:"),
        6,
        'unknown key "pipline" in backbone "net"; did you mean "pipeline"?',
    ),
    "an unknown key that looks like none": (
        NET + "    zzz: 1\n",
        7,
        'unknown key "zzz" in backbone "net"; expected title, aliases, arch',
    ),
    "an unknown key in a nested group": (
        SETS.replace("folder", "folder\n    splits: {vla: 0.1}"),
        5,
        'unknown key "vla" in "splits" of image set "pets"; did you mean "val"?',
    ),
    "an unknown key in a reference score": (
        NET + "    reference:\n      dtd_knn:\n        metric: top1\n        scor: 1.0\n        source: x\n",
        10,
        'unknown key "scor" in "reference.dtd_knn" of backbone "net"; did you mean "score" or "source"?',
    ),
    "the name as a key": (NET + "    name: net\n", 7, 'unknown key "name" in backbone "net"'),
    "a missing key": (NET.replace("    source: random\n", ""), 2, 'backbone "net" lacks the key source'),
    "two missing keys": (
        NET.replace("    source: random\n    pipe", "    #"),
        2,
        'backbone "net" lacks the keys source, pipeline',
    ),
    "a missing key in a group": (
        NET + "    reference: {dtd_knn: {metric: top1, score: 1}}\n",
        2,
        "lacks the key reference.dtd_knn.source",
    ),
    "an unknown section": (NET.replace("backbones", "backbone"), 1, 'unknown section "backbone"; did you mean "backbones"?'),
    "a list for the file": ("- a\n- b\n", 1, "the file is a list; expected the sections backbones"),
    "a word for the file": ("hello\n", 1, 'the file is "hello"; expected the sections'),
    "a list for a section": ("backbones:\n  - net\n", 1, 'section "backbones" is a list; expected names'),
    "a word for an entry": ("backbones:\n  net: random\n", 2, 'backbone "net" is "random"; expected its keys below it'),
    "nothing for an entry": ("backbones:\n  net:\n", 2, 'backbone "net" is empty; expected its keys below it'),
    "an unknown choice": (
        NET.replace("resnet18", "resnet81"),
        4,
        '"arch" of backbone "net" is "resnet81"; expected resnet18 or resnet34 or resnet50 or resnet101 or resnet152 or '
        'wide_resnet50_2 or wide_resnet101_2 or resnet50x2 or resnet18x0.5 or resnet50x0.5; did you mean "resnet18"?',
    ),
    "a number for text": (line(NET, 3, "    title: 5"), 3, '"title" of backbone "net" is the number 5; expected text'),
    "nothing for text": (line(NET, 3, "    title:"), 3, '"title" of backbone "net" is empty; expected text'),
    "text for a number": (NET + "    seed: '3'\n", 7, '"seed" of backbone "net" is "3"; expected a whole number'),
    "yes for a number": (NET + "    seed: yes\n", 7, '"seed" of backbone "net" is the word true; expected a whole number'),
    "a fraction for a whole number": (NET + "    seed: 1.5\n", 7, '"seed" of backbone "net" is the number 1.5; expected a whole'),
    "a word for a list": (NET + "    aliases: n\n", 7, '"aliases" of backbone "net" is "n"; expected a list'),
    "a list for a group": (NET + "    reference: []\n", 7, '"reference" of backbone "net" is a list; expected keys with values'),
    "too few classes": (
        SETS.replace("folder", "folder\n    classes: 1"),
        5,
        "one class leaves nothing to tell apart; expected 2 or more",
    ),
    "a share above one": (
        SETS.replace("folder", "folder\n    splits:\n      val: 20"),
        6,
        '"splits.val" of image set "pets" is the',
    ),
    "one name for two classes": (
        SETS.replace("folder", "coco\n    class_names: [a, a]"),
        5,
        '"class_names" of image set "pets" is a list; expected different names',
    ),
    "a digest unquoted": (NET + "    sha256: 12345678\n", 7, '"sha256" of backbone "net" is the number 12345678; expected text'),
    "a digest too short": (NET + "    sha256: abc\n", 7, '"sha256" of backbone "net" is "abc"; expected 8 to 64 hexadecimal'),
    "a space in a name": (NET.replace("net:", "my net:"), 2, 'backbone "my net": a name has letters, digits and'),
    "a protocol without a version": (SETS.replace("quick@1", "quick"), 6, "ends in @ and a version: knn@1"),
    "a slash in a name": (NET.replace("net:", "../net:"), 2, 'backbone "../net": a name has letters, digits and'),
    "a space in an alias": (
        NET + "    aliases: [a, b c]\n",
        7,
        '"aliases.1" of backbone "net" is "b c"; expected letters, digits',
    ),
    "a number for a name": (NET.replace("net:", "1234:"), 2, "the key 1234 is not text; put it in quotes"),
    "a truth value for a name": (NET.replace("net:", "on:"), 2, "the key on is not text; put it in quotes"),
    "a bad pipeline": (NET.replace("resize(64,", "resiz(64,"), 6, '"pipeline" of backbone "net": pipeline \'rgb|resiz'),
    "a bad geometry": (SETS.replace("folder", "folder\n    geometry: scale01"), 5, '"geometry" of image set "pets": geometry'),
    "an unknown format": (NET + "    format: torchvison\n", 7, 'unknown format "torchvison"; did you mean "torchvision"?'),
    "an unknown provider": (SETS.replace("folder", "foldr"), 4, 'unknown provider "foldr"; did you mean "folder"?'),
    "an unknown probe": (SETS.replace("knn", "kn"), 8, '"probe" of protocol "quick@1": unknown probe "kn"; did you mean "knn"?'),
    "a recipe without a name": (NET.replace("random", "'recipe:'"), 5, '"source" of backbone "net": "recipe:" names no weights'),
    "a recipe that climbs": (NET.replace("random", "recipe:../x"), 5, '"recipe:../x" names no weights'),
    "an address of another kind": (NET.replace("random", "ftp://h/f.pth"), 5, '"ftp://h/f.pth" names no weights'),
    "an address of no file": (NET.replace("random", "https://h/"), 5, '"https://h/" names no weights'),
    "an empty source": (NET.replace("random", "''"), 5, '"" names no weights; expected random, recipe:NAME'),
    "a number YAML reads as text": (
        SETS.replace("source: none", "source: none\n    settings:\n      k: [5]\n      l2: [1.0, 1e-3]"),
        13,
        '"settings.l2" of protocol "quick@1": YAML reads 1e-3 as text',
    ),
    "an unknown image set": (
        "tasks:\n  t:\n    imageset: ciphar10\n    protocol: knn@1\n",
        3,
        'task "t" names the unknown image set "ciphar10"; did you mean "cifar10" or "cifar100"?',
    ),
    "an unknown protocol": (
        "tasks:\n  t:\n    imageset: dtd\n    protocol: knn\n",
        4,
        'task "t" names the unknown protocol "knn"; did you mean "knn@1"?',
    ),
    "an unknown member of a family": (
        'tasks:\n  "{imageset}_q":\n    imageset:\n      - dtd\n      - dtdd\n    protocol: knn@1\n',
        5,
        'task "dtdd_q" names the unknown image set "dtdd"; did you mean "dtd"?',
    ),
    "an unknown field in the name of a family": (
        'tasks:\n  "{imagset}_q":\n    imageset: [dtd]\n    protocol: knn@1\n',
        2,
        'unknown {imagset} in the name; did you mean "imageset"?',
    ),
    "a list without a field in the name": (
        "tasks:\n  q:\n    imageset: [dtd, mnist]\n    protocol: knn@1\n",
        3,
        '"imageset" of task "q" is a list, so the name needs {imageset}',
    ),
    "a misspelt key in a family": (
        'tasks:\n  "{imageset}_q":\n    imageset: [dtd, mnist]\n    protocl: knn@1\n',
        4,
        'unknown key "protocl" in task "{imageset}_q"; did you mean "protocol"?',
    ),
    "a score for an unknown task": (
        NET + "    reference:\n      dtd_kn: {metric: top1, score: 1.0, source: x}\n",
        8,
        'backbone "net" has a reference score for the unknown task "dtd_kn"; did you mean "dtd_knn"',
    ),
    "a metric of another probe": (
        "tasks:\n  t:\n    imageset: dtd\n    protocol: knn@1\n    metric: box_AP\n",
        5,
        'task "t" is told by "box_AP", which knn@1 does not measure; expected top1, top5, mean_per_class',
    ),
    "a misspelt metric of a detector": (
        "tasks:\n  t:\n    imageset: coco\n    protocol: coco-c4-1x@1\n    metric: box_AP5O\n",
        5,
        'task "t" is told by "box_AP5O", which coco-c4-1x@1 does not measure; did you mean "box_AP',
    ),
    "a detector without a metric": (
        "tasks:\n  t:\n    imageset: coco\n    protocol: coco-c4-1x@1\n",
        2,
        'task "t" is told by "top1", which coco-c4-1x@1 does not measure; set `metric`, to box_AP or another',
    ),
    "a score in a metric that the task has not": (
        NET + "    reference:\n      dtd_knn: {metric: top11, score: 1.0, source: x}\n",
        8,
        'backbone "net" has a reference score in "top11", which knn@1 does not measure; did you mean "top1"',
    ),
    "a name twice in one section": (NET + "  net:\n    title: again\n", 7, 'the key "net" is written twice, first in line 2'),
    "a key twice in one entry": (NET + "    arch: resnet50\n", 7, 'the key "arch" is written twice, first in line 4'),
    "a section twice": (NET + NET, 7, 'the key "backbones" is written twice, first in line 1'),
    "a name of another section": (NET.replace("net:", "dtd_knn:"), 2, '"dtd_knn" is taken by task "dtd_knn"'),
    "a name that differs in case only": (NET.replace("net:", "CIFAR10:"), 2, '"CIFAR10" is taken by image set "cifar10"'),
    "an alias that is a name": (NET + "    aliases: [dtd]\n", 2, 'backbone "net": "dtd" is taken by image set "dtd"'),
    "a name that is an alias": (NET.replace("net:", "irings_imagenet:"), 2, 'is taken by backbone "iring_imagenet"'),
    "an alias that is the entry's own name": (NET + "    aliases: [net]\n", 7, "has one name twice"),
    "a tab": ("backbones:\n\tnet:\n", 2, "a tab in the indentation; YAML indents with spaces"),
    "an open bracket": ("backbones: [a\n", 2, "not valid YAML: while parsing a flow sequence begun in line 1"),
    "an open quote": ('backbones:\n  a: "b\n', 3, "not valid YAML: while scanning a quoted scalar begun in line 2"),
    "a colon in a value": (line(NET, 3, "    title: A: net"), 3, "not valid YAML: mapping values are not allowed"),
    "a wrong indentation": (NET + "   seed: 1\n", 7, "not valid YAML"),
    "two documents": (NET + "---\n" + NET, 7, "not valid YAML: expected a single document"),
    "a control character": ("backbones:\n  a: \x00\n", 2, "a control character that YAML does not allow"),
    "an unknown anchor": ("backbones: *x\n", 1, "not valid YAML: found undefined alias"),
    "a group of keys used twice": (NET + "    aliases: &a [b]\n" + TWO + "    aliases: *a\n", 13, "used a second time through *"),
    "a recursive anchor": ("backbones: &a\n  net: *a\n", 2, "used a second time through *"),
    "a merge key": (NET + "    <<: {seed: 1}\n", 7, "the merge key << is not read here"),
    "a python object": (
        "backbones: !!python/object/apply:os.system [ls]\n",
        1,
        'a YAML "python/object/apply:os.system" is not read',
    ),
    "a date": (line(NET, 3, "    title: 2021-01-31"), 3, 'a YAML "timestamp" is not read here; write it as text, in quotes'),
    "an impossible date": (line(NET, 3, "    title: 2021-13-45"), 3, 'a YAML "timestamp" is not read here'),
    "not a number": (SETS + "    settings: {t: .nan}\n", 11, ".nan is not a finite number"),
    "a number of 5000 digits": (NET + f"    seed: {'9' * 5000}\n", 7, 'cannot be read as "int"'),
    "a depth nobody needs": (SETS + f"    settings: {{k: {'[' * 30}{']' * 30}}}\n", 11, "nested more than 20 levels deep"),
    "a depth no parser likes": ("[" * 100_000, 1, "not valid YAML: while increasing flow level"),
}


@pytest.mark.parametrize("text, at, sentence", SLIPS.values(), ids=SLIPS)
def test_one_slip_gives_one_sentence_with_file_and_line(text: str, at: int, sentence: str):
    found = problems(text)
    assert found[0].startswith(f"registry.yaml:{at}: ") and sentence in found[0]
    assert len(found) == 1, found
    assert not any("\n" in problem for problem in found)
    with pytest.raises(UsageError, match=r"^registry\.yaml:\d+: "):
        registry.load()


def test_all_problems_of_a_file_are_told_in_the_order_of_its_lines():
    text = NET.replace("arch:", "arhc:").replace("rgb|", "rbg|") + "    sede: 1\nimageset: {}\n"
    found = problems(text)
    assert [problem.partition(" ")[0] for problem in found] == [f"registry.yaml:{at}:" for at in (4, 7, 8)]
    with pytest.raises(UsageError, match=r"registry.yaml:4: .*\(and 2 more: `bench validate` shows all\)"):
        registry.load()


def test_a_broken_entry_does_not_make_its_tasks_broken_too():
    tasks = "tasks:\n  t:\n    imageset: pets\n    protocol: quick@1\n"
    assert problems(SETS.replace("provider:", "provdier:") + tasks) == [
        'registry.yaml:4: unknown key "provdier" in image set "pets"; did you mean "provider"?'
    ]


def test_what_is_sound_stays_usable_beside_what_is_not():
    Path("registry.yaml").write_text(NET + NET.partition("\n")[2].replace("net:", "worse:").replace("arch:", "arhc:"))
    known, found = registry.check(Path("registry.yaml"))
    assert len(found) == 1
    assert "net" in known.backbones and "worse" not in known.backbones and "dtd_knn" in known.tasks


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "backbones:\n", "backbones: {}\ntasks:\n", "---\n", "\ufeff"])
def test_an_empty_registry_is_sound(text):
    assert problems(text) == []


@pytest.mark.parametrize("text", [NET.replace("\n", "\r\n"), "\ufeff" + NET, NET.rstrip("\n")], ids=["crlf", "bom", "no newline"])
def test_files_of_other_editors_are_read(text):
    assert problems(text) == []
    assert registry.load().backbones["net"].title == "A net"


def test_a_value_may_be_shared_through_an_anchor():
    text = NET.replace("pipeline: ", "pipeline: &p ") + TWO
    head, _, _ = text.rpartition("pipeline:")
    assert problems(head + "pipeline: *p\n") == []
    assert registry.load().backbones["two"].pipeline == registry.load().backbones["net"].pipeline


@pytest.mark.parametrize(
    "content, sentence",
    [
        (NET.replace("A net", "Ein Nétz").encode("latin-1"), "registry.yaml:3: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (NET.encode("utf-16"), "registry.yaml:1: byte 0xff is not UTF-8"),
        (b"#" * 2_000_000, "registry.yaml has 2000000 bytes, a registry at most 1000000; is it the right file?"),
    ],
    ids=["latin-1", "utf-16", "huge"],
)
def test_a_file_that_is_no_registry_is_refused_in_one_sentence(content, sentence):
    Path("registry.yaml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        registry.load()
    assert str(caught.value).startswith(sentence)


def test_a_registry_that_is_not_there_or_a_folder_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"the registry no\.yaml cannot be read: No such file"):
        registry.load(Path("no.yaml"))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        registry.load(tmp_path)


def test_a_billion_laughs_ends_at_once():
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    found = problems("\n".join(lines) + "\n")
    assert found and len(found) < 200


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8)  # PyYAML itself loses some of these
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12)


@given(TREES, st.booleans())
@settings(deadline=None)
def test_yaml_is_read_as_safe_load_reads_it(tree, flow):
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    document = yaml_lines.read(text)
    if not document.problems:  # PyYAML writes one empty list twice as an anchor, which is refused
        assert document.value == yaml.safe_load(text) == tree
    else:
        assert "&id" in text


@given(st.text(max_size=200))
@settings(deadline=None)
def test_no_text_makes_the_reader_crash(text):
    assert isinstance(registry.check(Path("r.yaml"), text)[1], list)


WORDS = [
    "backbones",
    "tasks",
    "imagesets",
    "protocols",
    "title",
    "arch",
    "imageset",
    "protocol",
    "{imageset}",
    "reference",
    "splits",
]
NEAR = st.recursive(
    SCALARS | st.sampled_from(["dtd", "knn@1", "random", "rgb"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=15,
)


@given(
    st.dictionaries(st.sampled_from(WORDS[:4]), st.dictionaries(st.text(max_size=5) | st.sampled_from(WORDS), NEAR, max_size=3))
)
@settings(deadline=None)
def test_no_tree_makes_the_registry_crash_and_every_problem_is_one_line(tree):
    found = registry.check(Path("r.yaml"), yaml.safe_dump(tree, allow_unicode=True))[1]
    assert all(str(problem).isprintable() and problem.line > 0 for problem in found)
