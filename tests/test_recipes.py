"""Recipes: generated from the files of a method and of a data set, typed, and every mistake told with its place."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from bench.cli import app
from pretrain import recipe as recipes
from ringbench.errors import UsageError

METHODS = [
    "ir",
    "iring",
    "cmc",
    "cmcring",
    "moco",
    "mocoring",
    "la",
    "simclr",
    "simclrring",
    "supervised",
    "iring_noanneal",
    "iball",
]
DATASETS = ["cifar10", "cifar100", "stl10", "imagenet", "digits", "shapes", "folder"]
FILES = sorted(recipes.FOLDER.rglob("*.yaml"))


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def test_there_is_a_recipe_for_each_method_and_data_set():
    assert set(recipes.names()) == {f"{method}_{dataset}" for method in METHODS for dataset in DATASETS}


@pytest.mark.parametrize("name", recipes.names())
def test_every_generated_recipe_is_valid(name):
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipe.imageset == name.rpartition("_")[2]


def test_the_papers_values_are_those_of_the_recipe():
    recipe = recipes.load("iring_cifar10")
    found = recipe.arch, recipe.dim, recipe.lr, recipe.momentum, recipe.weight_decay, recipe.batch_size, recipe.epochs
    assert found == ("resnet18", 128, 0.03, 0.9, 1e-4, 256, 300)
    assert [round(drop * recipe.epochs) for drop in recipe.drops] == [200, 250]
    assert round(recipe.negatives.over * recipe.epochs) == 100
    assert (recipe.negatives.w_l, recipe.negatives.w_u) == (90, 99)
    assert recipe.settings == {"k": 4096, "temperature": 0.07, "momentum": 0.5}
    assert recipes.load("cmc_cifar10").batch_size == 128
    assert recipes.load("moco_imagenet").settings["size"] == 65536


def test_a_ring_variant_differs_from_its_base_in_its_negatives_alone():
    for base, ring in [("ir", "iring"), ("cmc", "cmcring"), ("moco", "mocoring"), ("simclr", "simclrring")]:
        for dataset in DATASETS:
            first, second = (recipes.load(f"{method}_{dataset}").model_dump() for method in (base, ring))
            differing = {key for key in first if first[key] != second[key]}
            assert differing == {"name", "title", "method", "negatives"}, (base, dataset)


def test_the_lesions_differ_from_iring_as_their_names_say():
    ring = recipes.load("iring_cifar10").negatives
    assert recipes.load("iball_cifar10").negatives == ring.model_copy(update={"w_u": 100.0})
    assert recipes.load("iring_noanneal_cifar10").negatives == ring.model_copy(update={"annealing": "constant"})


def test_what_a_data_set_says_of_a_method_holds_for_those_that_extend_it_and_no_others():
    assert recipes.load("simclrring_cifar10").image_size == 32
    assert recipes.load("iring_cifar10").image_size == 224
    assert recipes.load("mocoring_stl10").settings["size"] == 4096


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_file_is_short_and_begins_with_what_a_person_wants_to_know(path):
    lines = path.read_text().splitlines()
    header = "\n".join(line for line in lines if line.startswith("# "))
    assert len(lines) <= 30
    assert lines[0].startswith("# ")
    if not path.stem.startswith("_"):
        assert "Expected result:" in header and "Cost:" in header
        command = next(line for line in reversed(header.splitlines()) if "bench pretrain" in line).split()
        assert command[3] in recipes.words()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("epoch=3", 'unknown key "epoch" in recipe "iring_cifar10"; did you mean "epochs"?'),
        ("negatives.w_i=3", 'unknown key "w_i" in "negatives" of recipe "iring_cifar10"; did you mean "w_u" or "w_l"?'),
        ("epochs=soon", '"epochs" of recipe "iring_cifar10" is "soon"; expected a whole number'),
        ("epochs=0", '"epochs" of recipe "iring_cifar10" is the number 0; expected greater than or equal to 1'),
        ("lr=-1", '"lr" of recipe "iring_cifar10" is the number -1; expected greater than 0'),
        ("negatives.w_l=99.5", "w_l=99.5 must be below w_u=99"),
        ("objective=mocco", 'unknown objective "mocco"; did you mean "moco"'),
        ("accumulate=3", "a batch of 256 cannot be cut into 3 equal parts"),
        ("ema=0.9", "a momentum `ema` belongs to the objective moco"),
        ("stem=lab", "the objective cmc needs the stem lab"),
        ("negatives=[1", "not valid YAML"),
        ("drops=[0.5,a]", '"drops.1" of recipe "iring_cifar10" is "a"; expected a number'),
        ("settings={k: 3, momentum: .nan}", ".nan is not a finite number"),
        ("epochs=99999999999999999999", "expected less than or equal to 10000000"),
        (f"settings{'.a' * 2000}=1", "nested more than 20 levels deep"),
    ],
)
def test_a_wrong_change_is_one_sentence_that_repeats_the_change(change, sentence):
    with pytest.raises(UsageError) as error:
        recipes.load("iring_cifar10", [change])
    assert f"--set {change}: " in str(error.value)
    assert sentence in str(error.value)


def test_an_accumulated_batch_is_refused_where_the_batch_holds_the_negatives():
    with pytest.raises(UsageError, match="simclr takes its negatives from the batch"):
        recipes.load("simclr_cifar10", ["accumulate=2"])


def test_a_change_without_a_value_is_refused():
    with pytest.raises(UsageError, match='--set "epochs" is not key=value'):
        recipes.load("ir_digits", ["epochs"])


def test_numbers_may_be_written_as_people_write_them():
    assert recipes.load("ir_digits", ["weight_decay=1e-3"]).weight_decay == 1e-3


def test_a_slip_in_a_recipe_file_is_told_with_file_and_line(monkeypatch, tmp_path):
    copied = recipes.FOLDER
    for folder in ("methods", "datasets"):
        (tmp_path / folder).mkdir()
        for path in (copied / folder).glob("*.yaml"):
            (tmp_path / folder / path.name).write_text(path.read_text())
    monkeypatch.setattr(recipes, "FOLDER", tmp_path)
    path = tmp_path / "methods" / "ir.yaml"
    path.write_text("title: IR\nextends: _paper\nobjective: ir\nsetings: {k: 5}\n")
    with pytest.raises(UsageError) as error:
        recipes.load("iring_digits")
    assert str(error.value).startswith(f'{path}:4: unknown key "setings" in recipe "iring_digits"; did you mean "settings"')
    path.write_text("title: IR\nextends: _paper\nobjective: ir\nobjective: moco\n")
    with pytest.raises(UsageError, match=r"ir.yaml:4: the key \"objective\" is written twice, first in line 3"):
        recipes.load("iring_digits")
    path.write_text((copied / "methods" / "ir.yaml").read_text())
    path = tmp_path / "datasets" / "digits.yaml"
    path.write_text("title: digits\nimageset: digits\nepochs: 3\nmethods:\n  mocco: {ema: 0.5}\n")
    with pytest.raises(UsageError, match=r'digits.yaml:5: unknown method "mocco"; did you mean "moco"'):
        recipes.load("moco_digits")


def test_irings_is_another_name_of_iring():
    assert recipes.load("irings_imagenet") == recipes.load("iring_imagenet")


def test_an_unknown_recipe_is_an_error_with_the_nearest_names():
    result = invoke("pretrain", "irng_cifar10")
    assert result.exit_code == 2
    assert 'unknown recipe "irng_cifar10"; did you mean "iring_cifar10"' in result.stderr


def test_recipes_are_listed_and_shown():
    listed = json.loads(invoke("list", "recipes", "--json").stdout)["recipes"]
    assert [each["name"] for each in listed] == recipes.names()
    shown = invoke("show", "irings_cifar10")
    assert shown.exit_code == 0
    assert "recipe iring_cifar10 (irings_cifar10 is an alias)" in shown.stdout
    assert "methods/iring.yaml:12" in shown.stdout  # where the ring is written
    assert "2 to 5 points above ir" in shown.stdout


def test_listing_and_showing_recipes_loads_no_torch():
    code = """
import sys
from bench.cli import app
for words in (["list", "recipes"], ["show", "iring_imagenet"]):
    try:
        app(words, standalone_mode=False)
    except SystemExit:
        pass
print("torch" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""
    environment = os.environ | {"PYTHONPATH": str(recipes.FOLDER.parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False False"


def test_a_file_of_ones_own_extends_a_recipe_and_is_called_as_the_file_is(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text("extends: iring_cifar10\nepochs: 3\nnegatives: {w_l: 50}\n")
    recipe, base = recipes.load(str(path), ["lr=0.1"]), recipes.load("iring_cifar10")
    assert (recipe.name, recipe.epochs, recipe.lr, recipe.negatives.w_l, recipe.negatives.w_u) == ("short", 3, 0.1, 50, 99)
    same = base.model_dump(exclude={"name", "title", "epochs", "lr", "negatives"})
    assert recipe.model_dump(exclude={"name", "title", "epochs", "lr", "negatives"}) == same
    shown = invoke("show", str(path))
    assert shown.exit_code == 0
    assert f"{path}:2" in shown.output.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs: 3\n", ":1: a recipe of your own starts from another"),
        ("epochs: 3\nextends: irong_cifar10\n", ':2: unknown recipe "irong_cifar10"; did you mean "iring_cifar10"'),
        ("extends: iring_cifar10\nepoch: 3\n", ':2: unknown key "epoch" in recipe "own"; did you mean "epochs"?'),
        ("extends: iring_cifar10\nepochs: many\n", ':2: "epochs" of recipe "own" is "many"'),
    ],
)
def test_what_is_wrong_in_a_file_of_ones_own_is_told_with_its_line(tmp_path, text, sentence):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        recipes.load(str(path))
    assert str(error.value).startswith(f"{path}{sentence}")


def test_a_file_of_ones_own_extends_another_beside_it_and_never_itself(tmp_path):
    (tmp_path / "base.yaml").write_text("extends: ir_cifar10\nepochs: 3\n")
    (tmp_path / "ring.yaml").write_text("extends: base.yaml\nnegatives: {w_l: 50, w_u: 90}\n")
    recipe = recipes.load(str(tmp_path / "ring.yaml"))
    assert (recipe.name, recipe.epochs, recipe.negatives.w_l, recipe.objective) == ("ring", 3, 50, "ir")
    (tmp_path / "base.yaml").write_text("extends: ring.yaml\n")
    with pytest.raises(UsageError, match="extends itself"):
        recipes.load(str(tmp_path / "ring.yaml"))


def test_recipes_may_extend_one_another_as_often_as_they_like(tmp_path):
    for number in range(1200):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\nepochs: {number + 1}\n")
    (tmp_path / "1200.yaml").write_text("extends: ir_cifar10\nepochs: 7\nlr: 0.5\n")
    recipe = recipes.load(str(tmp_path / "0.yaml"))
    assert (recipe.name, recipe.epochs, recipe.lr) == ("0", 1, 0.5)


def test_a_recipe_of_very_many_keys_is_soon_refused_and_not_every_key_told(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text("extends: ir_digits\n" + "".join(f"key{number}: 1\n" for number in range(50_000)))
    started = time.monotonic()
    with pytest.raises(UsageError, match=r'recipe "many" has 49980 more such mistakes$') as error:
        recipes.load(str(path))
    assert time.monotonic() - started < 20  # minutes, were anything quadratic
    assert len(str(error.value).splitlines()) == 21


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"own\.yaml:1: the file is empty; expected keys with values"),
        (b"- a\n", r"own\.yaml:1: the file is a list"),
        (b"extends: ir_digits\nsettings:\n\tk: 3\n", r"own\.yaml:3: a tab in the indentation"),
        (b"extends: ir_digits\ntitle: caf\xe9\n", r"own\.yaml:2: byte 0xe9 is not UTF-8"),
        (b"extends: &a [*a, *a]\n", "is used a second time"),
        (b'extends: "a\\0.yaml"\n', "cannot be read: embedded null byte"),
        (b"extends: %s.yaml\n" % (b"x" * 300), "cannot be read: File name too long"),
        (b"#" * 1_000_001, "has 1000001 bytes, a recipe at most 1000000"),
        (None, r"the recipe own\.yaml cannot be read: Is a directory"),
        (os.mkfifo, r"own\.yaml:1: the file is empty"),  # a pipe into which nobody writes is not waited for
    ],
    ids=str,
)
def test_what_is_no_recipe_is_one_sentence(tmp_path, content, sentence):
    path = Path("own.yaml")
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        (content or Path.mkdir)(path)
    with pytest.raises(UsageError, match=sentence) as error:
        recipes.load(str(path))
    assert len(str(error.value).splitlines()) == 1


def test_the_title_tells_what_was_changed_since_it_was_written(tmp_path):
    path, titled = tmp_path / "own.yaml", tmp_path / "titled.yaml"
    path.write_text("extends: ir_digits\nnegatives: {w_l: 50, w_u: 90}\nkeep: 9\n")
    titled.write_text("extends: own.yaml\ntitle: Mine\nlr: 0.5\n")
    for word, changes, title in (
        ("ir_digits", [], "IR, digits"),
        ("ir_digits", ["epochs=3", "name=mine", "knn_every=1", "epochs=12"], "IR, digits"),  # as it was, and what is put aside
        ("ir_digits", ["epochs=3", "settings.k=9"], "IR, digits; epochs=3, settings.k=9"),
        ("iring_digits", ["negatives=null"], "IRing, digits; negatives=null"),
        (path, [], "IR, digits; negatives.w_l=50, negatives.w_u=90"),
        (path, ["drops=[0.5]"], "IR, digits; drops=[0.5], negatives.w_l=50, negatives.w_u=90"),
        (titled, [], "Mine"),
        (titled, ["compile=true", "seed=1"], "Mine; seed=1"),
        (titled, ["title=IR anew", "seed=1"], "IR anew"),
    ):
        assert recipes.load(str(word), changes).title == title


def test_no_number_of_a_recipe_is_infinite():
    values = recipes.load("iring_digits").model_dump()
    for key, value in (("lr", math.inf), ("negatives", values["negatives"] | {"w_u": math.nan})):
        with pytest.raises(ValidationError, match="finite"):
            recipes.Recipe.model_validate(values | {key: value})


def test_the_head_with_batch_norms_centres_the_embeddings_of_an_untrained_network():
    import torch

    from pretrain.encoder import make

    changes = ["image_size=32", "arch=resnet18x0.5"]
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    z = {kind: make(recipes.load("ir_digits", [*changes, f"head={kind}"]))(images)[0].detach() for kind in ("mlp", "mlp_bn")}
    alike = {kind: float((torch.nn.functional.normalize(value).mean(dim=0)).norm()) for kind, value in z.items()}
    assert {kind: value.shape for kind, value in z.items()} == {"mlp": (64, 128), "mlp_bn": (64, 128)}
    assert alike["mlp_bn"] < 0.1 < 0.5 < alike["mlp"]


def test_a_missing_recipe_file_is_one_sentence():
    with pytest.raises(UsageError, match=r"the recipe nowhere\.yaml cannot be read: No such file"):
        recipes.load("nowhere.yaml")


def test_everything_wrong_with_a_recipe_is_told_at_once_each_with_its_place(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: ir_digits\nname: a/b\nepochs: 0\nstemm: cifar\nmethod: moco\n", encoding="utf-8")
    with pytest.raises(UsageError) as error:
        recipes.load(str(path), ["dim=0"])
    told = str(error.value).splitlines()
    for start in (f"{path}:2: ", f"{path}:3: ", f"{path}:4: ", f"{path}:5: the method of", "--set dim=0: "):
        assert any(line.strip().startswith(start) for line in told), (start, told)


def test_a_file_whose_name_is_no_recipes_name_is_named(tmp_path):
    path = tmp_path / "of mine.yaml"
    path.write_text("extends: ir_digits\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r'of mine\.yaml: recipe "of mine": a name has'):
        recipes.load(str(path))


@pytest.mark.parametrize("change", ["lr=inf", "warmup_epochs=1e999", "settings.temperature=nan"])
def test_a_value_that_is_no_finite_number_is_refused(change):
    with pytest.raises(UsageError, match=f"--set {change}: expected a finite number"):
        recipes.load("ir_digits", [change])
