"""`bench doctor` says what is there and exactly what is missing, and ends well whatever is broken."""

import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bench import doctor, registry, setup_detection, showing
from bench.cli import app


def examined(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    assert "Traceback" not in result.output
    return result.stdout


def row(text: str, name: str) -> str:
    return next(line.split(maxsplit=1)[1] for line in text.splitlines() if line.split()[:1] == [name])


def test_every_backbone_image_set_and_task_is_available_or_missing_for_a_reason(isolated_home: Path, tmp_path: Path):
    text, known = examined(), registry.load()
    assert row(text, "random_resnet18") == row(text, "digits") == "available"
    assert row(text, "torchvision_resnet18").startswith(f"resnet18-f37072fd.pth is not in {isolated_home / 'checkpoints'}")
    assert row(text, "iring_imagenet").startswith("not trained yet")
    for name, spec in known.imagesets.items():
        if spec.provider not in ("embedded", "shapes"):
            assert str(tmp_path / "data" / (spec.root or name)) in row(text, name)
    tasks = {kind: set() for kind in ("available", "unavailable")}
    for kind, names in re.findall(r"^(available|unavailable) +([\w, ]+)", text.partition("TASKS\n")[2], re.MULTILINE):
        tasks[kind] |= set(names.split(", "))
    here = ["digits", "shapes"] if setup_detection.missing() is None else ["digits"]
    assert tasks["available"] == {task.name for task in known.tasks.values() if task.imageset in here}
    assert tasks["unavailable"] == set(known.tasks) - tasks["available"]


def test_places_say_where_they_come_from(isolated_home: Path, monkeypatch):
    assert row(examined(), "BENCH_HOME") == f"{isolated_home} (from the environment, not there yet)"
    monkeypatch.delenv("BENCH_DATA")
    isolated_home.mkdir()
    (isolated_home / "cache").mkdir()
    (isolated_home / "cache" / "features.npy").write_bytes(bytes(2_500_000))
    text = examined()
    assert row(text, "BENCH_HOME") == f"{isolated_home} (from the environment)"
    assert row(text, "BENCH_DATA") == f"{isolated_home / 'data'} (default, not there yet)"
    assert row(text, "cache") == f"2.5 MB in {isolated_home / 'cache'}"
    assert "free at" in row(text, "disk")


def test_versions_and_the_device_are_those_of_this_process():
    text = examined()
    assert row(text, "torch") == torch.__version__.partition("+")[0] or torch.__version__ in row(text, "torch")
    assert row(text, "python") == sys.version.split()[0]
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert row(text, "auto") == f"--device auto is {expected}"


@pytest.mark.parametrize("package", doctor.OPTIONAL)
def test_an_absent_package_is_told_with_its_install_line(package: str, monkeypatch):
    version = doctor.metadata.version

    def absent(name: str) -> str:
        if name == package:
            raise doctor.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    assert row(examined(), package) == f"not installed (optional): {doctor.OPTIONAL[package]}"


def test_a_checkpoint_that_is_another_file_is_found_out(isolated_home: Path):
    (isolated_home / "checkpoints").mkdir(parents=True)
    (isolated_home / "checkpoints" / "resnet18-f37072fd.pth").write_bytes(b"half a file")
    assert "the registry expects f37072fd" in row(examined(), "torchvision_resnet18")


def test_a_broken_registry_is_told_and_the_rest_goes_on():
    Path("registry.yaml").write_text("backbones:\n  net: {titel: x}\n")
    text = examined()
    assert 'registry.yaml:2: unknown key "titel" in backbone "net"; did you mean "title"?' in text
    assert row(text, "random_resnet18") == "available"
    assert "cannot be read: No such file" in examined("--registry", "nowhere.yaml")


def test_a_torch_that_cannot_be_imported_is_told_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    text = examined()
    assert "import of torch halted" in row(text, "not")
    assert row(text, "digits") == "available"


def test_an_image_set_that_breaks_its_provider_is_told_and_the_rest_goes_on(monkeypatch):
    usual = showing.missing

    def missing(known, spec):
        if spec.name == "dtd":
            raise ZeroDivisionError("three of nothing")
        return usual(known, spec)

    monkeypatch.setattr(showing, "missing", missing)
    text = examined()
    assert row(text, "dtd") == "ZeroDivisionError: three of nothing"
    assert row(text, "digits") == "available"
