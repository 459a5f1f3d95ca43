"""`bench pretrain` from the command line to an encoder that `bench run` measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from bench import registry
from bench.cli import app
from pretrain import recipe as recipes
from ringbench import places
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


def test_an_encoder_is_not_replaced_unasked_by_one_that_was_trained_otherwise():
    path = places.checkpoints() / "ir_digits.safetensors"
    first = invoke("pretrain", "ir_digits", "--device", "cpu", "--out", "a", *SHORT)
    assert first.exit_code == 0, first.output
    assert registry.load().backbones["ir_digits"].pretraining.endswith(", batch_size 128, epochs 1, image_size 16")
    kept = path.read_bytes()
    changed = (*SHORT, "--set", "seed=7")
    refused = invoke("pretrain", "ir_digits", "--device", "cpu", "--out", "b", *changed)
    assert refused.exit_code == 2 and not Path("b").exists()
    assert "was trained with another recipe (seed 0); give this encoder a name of its own" in refused.stderr
    assert path.read_bytes() == kept
    again = invoke("pretrain", "ir_digits", "--device", "cpu", "--out", "c", *SHORT, "--set", "keep=1")
    assert again.exit_code == 0 and path.read_bytes() == kept, "the same recipe is the same encoder"
    forced = invoke("pretrain", "ir_digits", "--device", "cpu", "--out", "d", *changed, "--force")
    assert forced.exit_code == 0 and path.read_bytes() != kept
    assert "registered already: ir_digits" in forced.output
    path.with_suffix(".json").unlink()
    unknown = invoke("pretrain", "ir_digits", "--device", "cpu", "--out", "e", *SHORT)
    assert unknown.exit_code == 2 and "has no card that says how it was trained" in unknown.stderr


def test_an_entry_that_prepares_images_otherwise_is_found_out_before_the_training():
    Path("registry.yaml").write_text(
        "backbones:\n  ir_digits:\n    title: mine\n    arch: resnet18x0.5\n    stem: imagenet\n    source: recipe:ir_digits\n"
        "    pipeline: 'rgb|resize(32,bicubic)|center_crop(32)|scale01'\n"
    )
    result = invoke("pretrain", "ir_digits", "--device", "cpu", *SHORT)
    assert result.exit_code == 2 and not Path("runs").exists()
    assert "the entry ir_digits (registry.yaml:2) has another pipeline than what would be trained" in result.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("settings.temperature=abc", "the setting 'temperature' of ir is 'abc': Input should be a valid number"),
        ("settings.temperature=[1]", "the setting 'temperature' of ir is [1]: Input should be a valid number"),
        ("settings.k=1e9", "the setting 'k' of ir is 1000000000.0: Input should be a valid integer"),
        ("settings.form=nse", "the setting 'form' of ir is 'nse': Input should be 'softmax' or 'nce'"),
        ("epochs=99999999999999999999", '"epochs" of recipe "ir_digits"'),
    ],
)
def test_a_setting_of_the_wrong_type_is_told_before_anything_is_trained(change, words):
    for dry in ([], ["--dry-run"]):
        result = invoke("pretrain", "ir_digits", "--device", "cpu", "--set", change, *dry)
        assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.output


def test_an_error_in_the_ranks_is_told_once_with_its_exit_code():
    changed = [word for change in ("settings.k=many", "epochs=1") for word in ("--set", change)]
    result = invoke("pretrain", "ir_digits", "--device", "cpu", "--nproc", "2", *changed)
    assert result.exit_code == 2
    assert result.stderr.count("the setting 'k' of ir is 'many'") == 1 and "Traceback" not in result.output


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
    ("change", "sentence"), [("settings.kk=3", "unknown setting 'kk' of ir; expected k"), ("views=rign", "unknown views 'rign'")]
)
def test_what_only_the_parts_know_is_refused_in_a_sentence(change, sentence):
    result = invoke("pretrain", "iring_digits", "--device", "cpu", "--set", change)
    assert result.exit_code == 2 and sentence in result.stderr


def test_a_recipe_of_ones_own_does_not_take_the_name_of_one_that_comes_with_ringbench(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: ir_digits\nname: iring_imagenet\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["pretrain", str(path), "--device", "cpu", "--dry-run"])
    assert result.exit_code == 2 and '"iring_imagenet" is a recipe that comes with ringbench' in result.output
