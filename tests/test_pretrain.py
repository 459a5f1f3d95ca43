"""`bench pretrain` from the command line to an encoder that `bench run` measures."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from bench import editing, registry
from bench.cli import app
from pretrain import recipe as recipes
from ringbench import files, places
from ringbench.stopping import Preempted

SHORT = [word for change in ("epochs=1", "image_size=16", "batch_size=128", "knn_every=1") for word in ("--set", change)]


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def test_a_recipe_becomes_an_encoder_with_a_name_that_can_be_measured(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(recipes.FOLDER.parents[1])}
    command = [sys.executable, "-m", "bench.cli", "pretrain", "iring_digits", "--device", "cpu", "--nproc", "2", *SHORT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1  # one of two ranks speaks
    assert "on 2 x cpu" in done.stdout
    path = places.checkpoints() / "iring_digits.safetensors"
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    assert {"conv1.weight", "bn1.running_var", "layer4.1.conv2.weight"} <= names
    assert not [name for name in names if "head" in name or "bank" in name]
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["recipe"]["name"] == "iring_digits" and card["steps"] == 11
    assert card["data"]["images"] == 1438 and len(card["data"]["fingerprint"]) == 64
    assert 0 <= card["log"][-1]["knn"] <= 1
    entry = registry.load().find("backbones", "irings_digits")
    assert (entry.name, entry.source, entry.arch) == ("iring_digits", "recipe:iring_digits", "resnet18x0.5")
    measured = invoke("run", "--backbone", "iring_digits", "--task", "digits_knn", "--device", "cpu")
    assert measured.exit_code == 0, measured.output
    assert "iring_digits digits_knn seed 0: top1" in measured.output
    result = json.loads(next(tmp_path.glob("results/**/*.json")).read_text())
    assert result["trunk_sha256"] == card["trunk_sha256"]
    again = invoke("pretrain", "iring_digits", *SHORT)
    assert again.exit_code == 2 and "holds a run already" in again.stderr


def test_an_error_in_the_ranks_is_told_once_with_its_exit_code():
    changed = [word for change in ("settings.k=many", "epochs=1") for word in ("--set", change)]
    result = invoke("pretrain", "ir_digits", "--device", "cpu", "--nproc", "2", *changed)
    assert result.exit_code == 2
    assert result.stderr.count('"k" of the settings of recipe "ir_digits" is "many"') == 1 and "Traceback" not in result.output


def test_a_run_that_diverges_fails_and_leaves_no_encoder():
    result = invoke("pretrain", "supervised_digits", "--device", "cpu", *SHORT, "--set", "lr=1e30", "--set", "schedule=constant")
    assert result.exit_code == 1
    assert "the loss of step 1 is nan" in result.stderr or "holds NaN or infinite values" in result.stderr
    assert "batch 1 of epoch 0" in result.stderr or "batch 0 of epoch 0" in result.stderr
    assert not list(places.checkpoints().glob("*"))
    assert "supervised_digits" not in registry.load().backbones


def test_a_dry_run_tells_the_cost_and_writes_nothing(tmp_path):
    result = invoke("pretrain", "moco_digits", "--device", "cpu", "--dry-run", "--set", "lr=0.1", "--set", "batch_size=128")
    assert result.exit_code == 0, result.output
    assert "1,438 of 8 px" in result.stdout
    assert "132 of 128 images: 12 epochs of 11" in result.stdout
    assert "0.1 for 64 images, so 0.2 for 128" in result.stdout
    assert "images/s, measured on 16" in result.stdout
    assert not (tmp_path / "runs").exists() and not (tmp_path / "home" / "registry.yaml").exists()


def test_missing_images_are_told_before_anything_is_trained():
    result = invoke("pretrain", "iring_cifar10")
    assert result.exit_code == 3
    assert "image set 'cifar10' is not here" in result.stderr


def test_a_folder_needs_its_place_and_a_taken_name_is_refused():
    assert "name it with --data DIR" in invoke("pretrain", "iring_folder").stderr
    for name in ("cifar10", "random_resnet18"):  # an image set's, and an encoder's that no such training made
        assert "is taken in the registry" in invoke("pretrain", "iring_digits", "--set", f"name={name}").output
    result = invoke("pretrain", "iring_digits", "--set", "name=cifar10")
    assert result.exit_code == 2 and 'the name "cifar10" is taken' in result.stderr


def test_another_training_takes_the_name_of_an_encoder_only_when_told_to_and_then_its_entry_too(tmp_path):
    words = ["pretrain", "iring_digits", "--device", "cpu", *SHORT]
    assert invoke(*words).exit_code == 0
    path, registered = places.checkpoints() / "iring_digits.safetensors", places.home() / "registry.yaml"
    first, text = path.read_bytes(), registered.read_text()
    for more in (["--out", "b"], ["--dry-run"]):
        refused = invoke(*words, "--set", "seed=1", "--set", "image_size=24", *more)
        assert refused.exit_code == 2
        assert f"error: iring_digits was trained with another image_size, seed ({path.with_suffix('.json')}): " in refused.stderr
        assert "--set name=NAME trains this one beside it, bench pretrain --force replaces it" in refused.stderr
    assert path.read_bytes() == first and not (tmp_path / "b").exists()
    shutil.rmtree("runs")  # the very same training may be done again
    assert invoke(*words, "--set", "keep=5").exit_code == 0
    assert path.read_bytes() == first and registered.read_text() == text
    registered.write_text(text.replace("irings_digits", "mine") + "\ntasks: {}  # mine\n")
    assert invoke(*words, "--set", "image_size=24", "--force", "--out", "b").exit_code == 0
    assert path.read_bytes() != first
    entry = registry.load().backbones["iring_digits"]
    assert "center_crop(24)" in entry.pipeline and entry.pretraining == entry.title and "image_size=24" in entry.title
    assert entry.aliases == ["mine"] and registered.read_text().endswith("\ntasks: {}  # mine\n")


def encoder_of(name: str, *changes: str) -> Path:
    """The card of an encoder that seems to be there."""
    path = places.checkpoints() / f"{name}.safetensors"
    path.parent.mkdir(parents=True)
    path.touch()
    card = {"recipe": recipes.load(name, list(changes)).model_dump(), "data": {"fingerprint": "f", "split_hash": "s"}}
    path.with_suffix(".json").write_text(json.dumps(card))
    return path.with_suffix(".json")


def test_an_encoder_of_other_images_or_of_nobody_knows_what_is_not_replaced_unseen():
    card = encoder_of("ir_digits")
    refused = invoke("pretrain", "ir_digits", "--device", "cpu")
    assert refused.exit_code == 2 and f"ir_digits was trained with another set of images ({card})" in refused.stderr
    for content in ("{}", "[1]", "{", '{"recipe": 1}'):
        card.write_text(content)
        refused = invoke("pretrain", "ir_digits", "--device", "cpu")
        assert refused.exit_code == 2 and "has no card beside it that says how it was trained" in refused.stderr
    assert not list(Path("runs").glob("*/*"))


def test_an_entry_that_says_something_else_than_the_recipe_is_told_before_the_training():
    again = ("--set name=NAME trains this one beside it", "bench pretrain --force replaces it")
    packaged = invoke("pretrain", "iring_imagenet", "--force", "--set", "epochs=3")  # its entry comes with ringbench and stays
    assert packaged.exit_code == 2 and "has another pretraining than this training" in packaged.stderr
    assert again[0] in packaged.stderr and again[1] not in packaged.stderr
    fields = {"title": "x", "arch": "resnet18x0.5", "source": "recipe:ir_digits", "pipeline": recipes.load("ir_digits").pipeline}
    editing.add_backbone(places.home() / "registry.yaml", "ir_digits", fields | {"pretraining": "IR on the digits"})
    told = invoke("pretrain", "ir_digits", "--device", "cpu").stderr
    assert "registry.yaml:4) has another pretraining than this training" in told and all(words in told for words in again)
    encoder_of("ir_digits")  # it is the same recipe: the words of a person stay
    assert "another set of images" in invoke("pretrain", "ir_digits", "--device", "cpu").stderr
    registry_file = places.home() / "registry.yaml"
    registry_file.write_text(registry_file.read_text().replace("resize(64", "resize(80"))
    assert "has another pipeline than this training" in invoke("pretrain", "ir_digits", "--device", "cpu").stderr


def test_an_entry_that_cannot_be_written_is_told_before_the_training(tmp_path):
    path = tmp_path / "registry.yaml"
    path.write_text("backbones: {}\n? complicated\n: layout\n")
    refused = invoke("pretrain", "ir_digits", "--device", "cpu")
    assert refused.exit_code == 2 and "registry.yaml:2" in refused.stderr
    path.write_text("backbones: {a: {title: A, arch: resnet18, source: random, pipeline: rgb}}\n")
    refused = invoke("pretrain", "ir_digits", "--device", "cpu")
    assert refused.exit_code == 2 and "laid out in a way that cannot be added to" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_a_preempted_run_asks_to_be_queued_again():
    assert Preempted.exit_code == os.EX_TEMPFAIL == 75


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("settings.kk=3", 'unknown key "kk" in the settings of recipe "iring_digits"; did you mean "k"?'),
        ("settings.n=3", "expected k, temperature, momentum, form"),  # what the trainer itself gives is no setting
        ("settings.temperature=abc", '"temperature" of the settings of recipe "iring_digits" is "abc"; expected a number'),
        ("settings.temperature=[1]", "is a list; expected a number"),
        ("settings.k=1e9", "is the number 1000000000.0; expected a whole number"),
        ("settings.k=99999999999999999999", "expected less than or equal to 10000000"),
        ("settings.k=0", "is the number 0; expected greater than or equal to 1"),
        ("settings.form=nse", 'expected softmax or nce; did you mean "nce"?'),
        ("views=rign", "unknown views 'rign'"),
    ],
)
def test_what_only_the_parts_know_is_refused_in_a_sentence(change, sentence):
    result = invoke("pretrain", "iring_digits", "--device", "cpu", "--set", change)
    assert result.exit_code == 2 and sentence in result.stderr


def test_a_recipe_of_ones_own_does_not_take_the_name_of_one_that_comes_with_ringbench(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: ir_digits\nname: iring_imagenet\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["pretrain", str(path), "--device", "cpu", "--dry-run"])
    assert result.exit_code == 2 and '"iring_imagenet" is a recipe that comes with ringbench' in result.output


def test_sigterm_before_the_first_step_asks_for_it_too(monkeypatch):
    words = ["pretrain", "ir_digits", "--device", "cpu", *SHORT]
    with monkeypatch.context() as patch:
        patch.setattr("bench.pretrain._trainer", lambda *_: signal.raise_signal(signal.SIGTERM))
        stopped = invoke(*words)
    assert stopped.exit_code == 75 and "stopped by SIGTERM before the first step" in stopped.stderr
    assert invoke(*words, "--resume").exit_code == 0


def test_a_run_may_be_in_the_working_folder_and_not_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    refused = invoke("pretrain", "ir_digits", "--out", "file")
    assert refused.exit_code == 2 and "'--out'" in refused.stderr
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with files.exclusive(tmp_path / "here"):
        assert "another process is at work in" in invoke("pretrain", "ir_digits", "--device", "cpu", "--out", ".").stderr
    assert invoke("pretrain", "ir_digits", "--device", "cpu", *SHORT, "--out", ".").exit_code == 0
    assert (tmp_path / "here" / "log.jsonl").exists()
