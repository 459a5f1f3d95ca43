"""`bench register`: nothing a person wrote is lost, nothing unsound is written, and two at once both succeed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench import editing, registry
from bench.cli import app
from ringbench import files, yaml_lines
from ringbench.errors import UsageError

FIELDS = {"title": "New", "aliases": ["fresh"], "arch": "resnet18", "source": "random", "pipeline": "rgb|scale01"}
ENTRY = """\
  old:   # mine
    title: 'Old'  # quoted once
    arch: "resnet18"
    source: random

    # the paper's
    pipeline: rgb|scale01
    aliases:
        - older   # last
"""
LAYOUTS = {
    "no file": None,
    "an empty file": "",
    "another section as {} at the end": "tasks: {}",
    "the section as {} at the end": "backbones: {}",
    "an entry in braces at the end": "imagesets:\n  q: {title: q, provider: voc}",
    "comments only": "# mine\n",
    "the section without entries": "backbones:  # mine\n\n# sets\nimagesets:\n",
    "the section as {}": "# mine\nbackbones: {}  # none yet\nimagesets:\n",
    "the section as null": "backbones: ~\n",
    "no such section": "tasks: {}   # none\n",
    "one entry": f"# mine\n\nbackbones:\n  # the first\n{ENTRY}",
    "a section behind it": f"backbones:\n{ENTRY}\n\n# sets of mine\nimagesets:\n  # none\n",
    "a comment at the end": f"backbones:\n{ENTRY}    # of the entry\n  # of the section\n# of the file\n",
    "no newline at the end": f"backbones:\n{ENTRY}".rstrip("\n"),
    "no newline after the section": "backbones:",
    "Windows line ends": f"# mine\nbackbones:\n{ENTRY}\n# sets\nimagesets:\n".replace("\n", "\r\n"),
    "a byte order mark and umlauts": f"\ufeff# größer\nbackbones:\n{ENTRY}".replace("Old", "Älter 🦊"),
    "an entry on one line": "backbones:\n  old: {title: Old, arch: resnet18, source: random, pipeline: rgb}  # short\n# end\n",
    "deeper indentation": f"backbones:\n{ENTRY}".replace("\n  ", "\n      "),
    "a block of text": "backbones:\n  old:\n    arch: resnet18\n    source: random\n    pipeline: rgb\n"
    "    title: |\n      a\n      b\n\n# e\n",
    "a document marker": f"---\nbackbones:\n{ENTRY}...\n",
}


@pytest.mark.parametrize("old", LAYOUTS.values(), ids=LAYOUTS)
def test_every_byte_of_the_old_file_stays_around_the_new_entry(old: str | None, tmp_path: Path):
    path = tmp_path / "deep" / "registry.yaml"
    if old is not None:
        path.parent.mkdir()
        path.write_bytes(old.encode())
    spec = editing.add_backbone(path, "new", FIELDS)
    new = path.read_bytes().decode()
    assert_only_inserted(old or "", new)
    assert ("\r\n" in new) == ("\r\n" in (old or "")) and ("\n" in new.replace("\r\n", "")) != ("\r\n" in new)
    known, problems = registry.check(path)
    assert problems == []
    assert known.backbones["new"] == spec
    assert (spec.title, spec.aliases, spec.arch) == ("New", ["fresh"], "resnet18")
    assert ("old" in known.backbones) == ("old" in (old or ""))
    if old and "# sets" in old:
        assert new.index("new:") < new.index("# sets"), "the comment above a section stays with its section"


def assert_only_inserted(old: str, new: str) -> None:
    """`new` is `old` with one run of characters put in; only a `{}` or `~` that stood for no entries may go."""
    old = old.replace("backbones: {}", "backbones: ").replace("backbones: ~", "backbones: ")
    assert any(new.startswith(old[:cut]) and new.endswith(old[cut:]) for cut in range(len(old) + 1))


COMMENT = st.sampled_from(["", "  # größer", ' # it\'s "quoted": {here}'])
VALUE = st.sampled_from(
    ["Plain", "'single'", '"double \\u00e9"', "two words", '"#1"', "'it''s'", "|\n{pad}  line one\n{pad}  line two"]
)


@st.composite
def overlays(draw) -> str:
    """A registry as a person may lay it out: any order of sections, indentation, quotes, comments and blank lines."""
    lines, pad = [], " " * draw(st.integers(1, 6))
    for section in draw(st.permutations(["backbones", "imagesets", "protocols"]))[: draw(st.integers(0, 3))]:
        lines += draw(st.sampled_from([[], [""], ["# above", ""], ["", "# above"]]))
        lines.append(f"{section}:{draw(COMMENT)}")
        for number in range(draw(st.integers(0, 2))):
            inner = pad + " " * draw(st.integers(1, 4))
            title, entry = draw(VALUE), f"{section[0]}{number}{'@1' if section == 'protocols' else ''}"
            keys = {
                "backbones": ["arch: resnet18", "source: random", "pipeline: rgb"],
                "imagesets": ["provider: folder"],
                "protocols": ["probe: knn", "level: pooled", "source: none"],
            }[section]
            keys = [f"{key}{draw(COMMENT)}" for key in keys] + [f"title: {title.format(pad=inner)}"]
            lines.append(f"{pad}{entry}:{draw(COMMENT)}")
            for key in draw(st.permutations(keys)):
                lines += draw(st.sampled_from([[], [], [""], [f"{inner}# about the next"]]))
                lines.append(inner + key)
            lines += draw(st.sampled_from([[], [""], [f"{inner}# behind"], ["# far left"]]))
    return "\n".join(lines) + draw(st.sampled_from(["\n", "", "\n\n"]))


def placed(tmp_path_factory, text: str) -> tuple[Path, registry.Registry]:
    """A registry of that text, and what it means."""
    path = tmp_path_factory.mktemp("home") / "registry.yaml"
    path.write_bytes(text.encode())
    return path, sound(path)


def sound(path: Path) -> registry.Registry:
    known, problems = registry.check(path)
    assert problems == []
    return known


def assert_same_entries(before: registry.Registry, after: registry.Registry) -> None:
    assert (before.backbones, before.imagesets, before.protocols) == (after.backbones, after.imagesets, after.protocols)


@given(overlays())
@settings(deadline=None, max_examples=60)
def test_any_sound_layout_keeps_its_lines_and_its_meaning(tmp_path_factory, text: str):
    path, before = placed(tmp_path_factory, text)
    editing.add_backbone(path, "new", FIELDS)
    assert_only_inserted(text, path.read_bytes().decode())
    after = sound(path)
    assert after.backbones.pop("new").title == "New"
    assert_same_entries(before, after)


@given(overlays())
@settings(deadline=None, max_examples=60)
def test_an_entry_is_replaced_in_any_sound_layout_and_the_others_keep_theirs(tmp_path_factory, text: str):
    path, before = placed(tmp_path_factory, text)
    old = [name for name in ("b0", "b1") if name in before.backbones]
    for name in old:
        editing.add_backbone(path, name, FIELDS | {"aliases": [f"new_{name}"]}, replace=True)
    after = sound(path)
    for name in old:
        assert after.backbones.pop(name).aliases == [f"new_{name}"] and before.backbones.pop(name)
    assert_same_entries(before, after)
    comments = [line.strip() for line in text.splitlines() if line.startswith("#")]
    assert [line.strip() for line in path.read_text().splitlines() if line.startswith("#")] == comments


@pytest.mark.parametrize("old", LAYOUTS.values(), ids=LAYOUTS)
def test_an_entry_that_is_to_be_replaced_is_so_in_every_layout_or_added(old: str | None, tmp_path: Path):
    path = tmp_path / "registry.yaml"
    if old is not None:
        path.write_bytes(old.encode())
    editing.add_backbone(path, "old", FIELDS, replace=True)
    known, problems = registry.check(path)
    assert problems == [] and known.backbones["old"].title == "New"
    assert path.read_text().count("old:") == 1


@pytest.mark.parametrize("section", ["backbones", "imagesets"])
def test_a_block_of_text_at_an_end_without_a_line_end_stays_as_it_is(tmp_path: Path, section: str):
    keys = {"backbones": "  arch: resnet18\n  source: random\n  pipeline: rgb\n", "imagesets": "  provider: folder\n"}[section]
    text = f"# above\n{section}:\n # its own\n old:\n{keys}  title: |\n    line one\n    line two"
    (tmp_path / "registry.yaml").write_text(text)
    editing.add_backbone(tmp_path / "registry.yaml", "new", FIELDS)
    assert_only_inserted(text, (tmp_path / "registry.yaml").read_text())
    after, problems = registry.check(tmp_path / "registry.yaml")
    assert not problems and after.backbones["new"].title == "New"
    assert getattr(after, section)["old"].title == "line one\nline two"


# PyYAML writes Unicode's own line ends in a way it cannot read back; such a text is refused, as an odd layout is
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x85\u2028\u2029"), max_size=30)


@given(st.dictionaries(st.sampled_from(["title", "pretraining", "checkpoint_key"]), ANY_TEXT))
@settings(deadline=None, max_examples=40)
def test_any_text_comes_back_as_it_was_given(tmp_path_factory, values: dict[str, str]):
    path = tmp_path_factory.mktemp("home") / "registry.yaml"
    spec = editing.add_backbone(path, "new", FIELDS | values)
    assert {key: getattr(spec, key) for key in values} == values
    assert yaml_lines.read(path.read_text(encoding="utf-8")).value["backbones"]["new"] == FIELDS | values


@pytest.mark.parametrize("name", ["on", "1234", "null", "1e5", "a.b@1+c-d", "x" * 100])
def test_names_that_yaml_would_read_as_something_else_stay_names(name: str, tmp_path: Path):
    assert editing.add_backbone(tmp_path / "r.yaml", name, FIELDS).name == name


@pytest.mark.parametrize(
    "name, fields, sentence",
    [
        ("old", {}, r'the name "old" is taken \(registry.yaml:2\); choose another'),
        ("OLD", {}, 'backbone "OLD": "OLD" is taken by backbone "old"'),
        ("older", {}, '"older" is taken by backbone "old"'),
        ("dtd", {}, '"dtd" is taken by image set "dtd"'),
        ("random_resnet18", {}, 'the name "random_resnet18" is taken'),
        ("new", {"aliases": ["old"]}, '"old" is taken by backbone "old"'),
        ("new", {"aliases": ["irings_imagenet"]}, '"irings_imagenet" is taken by backbone "iring_imagenet"'),
        ("new", {"aliases": ["new"]}, 'backbone "new" has one name twice'),
        ("new net", {}, 'backbone "new net": a name has letters'),
        ("new", {"pipeline": "rgb|resiz(3)"}, "unknown step 'resiz"),
    ],
)
def test_a_taken_name_or_an_unsound_entry_changes_nothing(name: str, fields: dict, sentence: str):
    path = Path("registry.yaml")
    path.write_text(f"backbones:\n{ENTRY}")
    with pytest.raises(UsageError, match=sentence):
        editing.add_backbone(path, name, FIELDS | fields)
    assert path.read_text() == f"backbones:\n{ENTRY}"


def test_a_broken_registry_is_not_added_to():
    path = Path("registry.yaml")
    path.write_text("backbone: {}\n")
    with pytest.raises(UsageError, match=r"registry\.yaml:1: unknown section"):
        editing.add_backbone(path, "new", FIELDS)
    assert path.read_text() == "backbone: {}\n"


def test_a_layout_that_cannot_be_added_to_is_said_with_the_lines_to_add(tmp_path: Path):
    path = tmp_path / "registry.yaml"
    text = "backbones: {old: {title: Old, arch: resnet18, source: random, pipeline: rgb}}\n"
    path.write_text(text)
    with pytest.raises(UsageError, match="add this yourself:\nnew:\n  title: New\n"):
        editing.add_backbone(path, "new", FIELDS)
    assert path.read_text() == text


def test_a_link_to_a_registry_stays_a_link(tmp_path: Path):
    target, link = tmp_path / "real.yaml", tmp_path / "registry.yaml"
    target.write_text("# mine\n")
    link.symlink_to(target)
    assert CliRunner().invoke(app, ["list", "--registry", str(link)]).exit_code == 0
    editing.add_backbone(link.resolve(), "new", FIELDS)
    assert link.is_symlink() and "new" in registry.load(link).backbones


def test_two_processes_at_once_lose_nothing(tmp_path: Path):
    path = tmp_path / "registry.yaml"
    path.write_text("# kept\n")
    script = (
        "import sys\nfrom pathlib import Path\nfrom bench import editing\n"
        "for number in range(15):\n"
        f"    editing.add_backbone(Path({str(path)!r}), f'{{sys.argv[1]}}{{number}}', "
        "{'title': 't', 'arch': 'resnet18', 'source': 'random', 'pipeline': 'rgb'})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(editing.__file__).parent.parent)}
    both = [subprocess.Popen([sys.executable, "-c", script, word], env=environment) for word in ("a", "b")]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    known = registry.load(path)
    assert {f"{word}{number}" for word in "ab" for number in range(15)} <= set(known.backbones)
    assert path.read_text().startswith("# kept\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".registry.yaml.lock", "registry.yaml"]


# --- the command


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    from torchvision.models import resnet18

    path = tmp_path_factory.mktemp("weights") / "net.pth"
    torch.manual_seed(0)
    torch.save(resnet18().state_dict(), path)
    return path


def register(*arguments: str | Path):
    return CliRunner().invoke(app, ["register", *map(str, arguments)])


def test_a_checkpoint_gets_a_name_in_the_home_with_its_digest_and_can_be_found(checkpoint: Path, isolated_home: Path):
    result = register("mine", checkpoint, "--alias", "my")
    assert result.exit_code == 0, result.output
    assert str(isolated_home / "registry.yaml") in result.stdout
    assert "normalize(imagenet) (usual for torchvision files; change it there" in result.stdout
    spec = registry.load().find("backbones", "my")
    assert (spec.name, spec.arch, spec.stem, spec.format) == ("mine", "resnet18", "imagenet", "torchvision")
    assert spec.source == str(checkpoint)
    assert spec.sha256 == files.sha256_file(checkpoint)


def test_it_writes_to_the_registry_of_the_working_folder_where_there_is_one(checkpoint: Path, isolated_home: Path):
    Path("registry.yaml").write_text("# mine\n")
    Path("weights").mkdir()
    Path("weights/net.pth").hardlink_to(checkpoint)
    assert register("mine", "weights/net.pth", "--pipeline", "rgb|resize(64)|scale01").exit_code == 0
    assert "source: ./weights/net.pth\n" in Path("registry.yaml").read_text()
    assert registry.load().backbones["mine"].pipeline == "rgb|resize(64)|scale01"
    assert not (isolated_home / "registry.yaml").exists()
    assert "mine" not in registry.load(registry.PACKAGED).backbones


def test_it_writes_to_the_registry_that_is_named(checkpoint: Path, tmp_path: Path):
    assert register("mine", checkpoint, "--registry", tmp_path / "other.yaml").exit_code == 0
    assert "mine" in registry.load(tmp_path / "other.yaml").backbones
    assert "mine" not in registry.load().backbones


@pytest.mark.parametrize(
    "spoil, arguments, exit_code, sentence",
    [
        (lambda tensors: tensors.pop("layer3.1.conv2.weight"), [], 1, "layer3.1.conv2.weight"),
        (lambda tensors: tensors.update({"bn1.bias": torch.full((64,), torch.nan)}), [], 1, "bn1.bias"),
        (lambda tensors: None, ["--arch", "resnet50"], 1, "resnet50"),
        (lambda tensors: None, ["--format", "nonesuch"], 2, "unknown checkpoint format 'nonesuch'"),
        (lambda tensors: None, ["--arch", "resnet34"], 1, "of a resnet34"),
        (lambda tensors: None, ["--arch", "vgg16"], 2, "unknown arch 'vgg16'"),
        (lambda tensors: None, ["--pipeline", "rgb|resiz(3)"], 2, 'did you mean "resize"'),
        (lambda tensors: None, ["--alias", "dtd"], 2, '"dtd" is taken by image set "dtd"'),
    ],
)
def test_what_cannot_be_loaded_whole_or_is_wrong_is_not_registered(
    checkpoint: Path, tmp_path: Path, isolated_home: Path, spoil, arguments: list[str], exit_code: int, sentence: str
):
    tensors = torch.load(checkpoint, weights_only=True)
    spoil(tensors)
    torch.save(tensors, tmp_path / "net.pth")
    result = register("mine", tmp_path / "net.pth", *arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert sentence in result.stderr
    assert not (isolated_home / "registry.yaml").exists()


def test_a_file_that_is_no_checkpoint_or_not_there_is_not_registered(tmp_path: Path, isolated_home: Path):
    (tmp_path / "net.pth").write_text("hello")
    assert register("mine", tmp_path / "net.pth").exit_code == 1
    missing = register("mine", tmp_path / "nowhere.pth")
    assert missing.exit_code == 2 and "nowhere.pth" in missing.stderr
    assert not (isolated_home / "registry.yaml").exists()
