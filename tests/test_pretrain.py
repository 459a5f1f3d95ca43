"""`bench pretrain` from the command line to an encoder that `bench run` measures."""

import json
import os
import subprocess
import sys

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from bench import registry
from bench.cli import app
from pretrain import recipe as recipes
from pretrain.stopping import Preempted
from ringbench import places

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
