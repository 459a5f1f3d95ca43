import csv
import email
import io
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from bench import setup_detection
from ringbench.errors import RingbenchError, Unavailable

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """What the wheel on PyPI is like: Python files, an extension for one Python, a stray package, metadata under another name."""
    path = tmp_path / "sal_detectron2-0.7.2-cp310-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("detectron2/__init__.py", '__version__ = "0.7.2"\n')
        archive.writestr("detectron2/modeling/__init__.py", "")
        archive.writestr("detectron2/configs/base.yaml", "VERSION: 2\n")
        archive.writestr("detectron2/_C.cpython-310-x86_64-linux-gnu.so", b"\x7fELF")
        archive.writestr("tools/__init__.py", "")
        archive.writestr("sal_detectron2-0.7.2.dist-info/LICENSE", "Apache License")
        archive.writestr("sal_detectron2-0.7.2.dist-info/METADATA", "Name: sal-detectron2\nRequires-Dist: numpy<2\n")
        archive.writestr("sal_detectron2-0.7.2.dist-info/WHEEL", "Tag: cp310-cp310-linux_x86_64\n")
        archive.writestr("sal_detectron2-0.7.2.dist-info/RECORD", "")
    return path


def test_repacking_keeps_the_python_files_and_the_licence_and_leaves_out_what_is_compiled_or_stray(wheel, tmp_path):
    with zipfile.ZipFile(setup_detection.repack(wheel, tmp_path)) as made:
        info = f"detectron2-{setup_detection.VERSION}.dist-info"
        assert set(made.namelist()) == {
            "detectron2/__init__.py",
            "detectron2/modeling/__init__.py",
            "detectron2/configs/base.yaml",
            *(f"{info}/{name}" for name in ("licenses/LICENSE", "METADATA", "WHEEL", "RECORD")),
        }
        assert made.read(f"{info}/licenses/LICENSE") == b"Apache License"
        assert b"Root-Is-Purelib: true\nTag: py3-none-any" in made.read(f"{info}/WHEEL")
        rows = list(csv.reader(io.StringIO(made.read(f"{info}/RECORD").decode())))
        assert sorted(row[0] for row in rows) == sorted(made.namelist())


def test_equal_wheels_are_repacked_to_equal_bytes(wheel, tmp_path):
    first = setup_detection.repack(wheel, tmp_path).read_bytes()
    assert setup_detection.repack(wheel, tmp_path).read_bytes() == first


def test_pip_installs_the_repacked_wheel_and_finds_every_file_as_recorded(wheel, tmp_path):
    made = setup_detection.repack(wheel, tmp_path)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(made)]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (target / "detectron2" / "__init__.py").exists()
    assert not (target / "tools").exists()


def test_the_metadata_says_honestly_what_the_package_is():
    told = email.message_from_string(setup_detection.METADATA)
    assert (told["Name"], told["License-Expression"]) == ("detectron2", "Apache-2.0")
    assert told["Version"].partition("+")[2], "a local version: this is no release of Detectron2's authors"
    assert "sal-detectron2 0.7.2" in told["Summary"]
    assert tuple(told.get_all("Requires-Dist")) == setup_detection.REQUIRES


def test_the_extra_lists_what_the_wheel_requires_and_nothing_that_pip_would_clone():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["detection"]
    assert set(setup_detection.REQUIRES) <= set(extra)
    assert not any("@" in requirement for requirement in extra)


def test_what_is_already_importable_is_checked_and_left(monkeypatch, capsys):
    monkeypatch.setattr(setup_detection, "missing", lambda: None)
    monkeypatch.setattr(setup_detection, "_checked", lambda: "0.6 in /somewhere")
    monkeypatch.setattr(setup_detection, "_pip", lambda *arguments: pytest.fail("pip was called"))
    setup_detection.command()
    assert "already here: 0.6 in /somewhere" in capsys.readouterr().out


def test_the_official_source_takes_the_place_of_the_repacked_wheel_but_not_of_itself(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(setup_detection, "_pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(setup_detection, "_checked", lambda: "0.6")
    monkeypatch.setattr(setup_detection, "missing", lambda: None)
    for installed in ("0.6", setup_detection.VERSION):
        monkeypatch.setattr(setup_detection, "_version", lambda installed=installed: installed)
        setup_detection.command(from_source=True)
    assert calls == [("install", "setuptools", "wheel"), ("install", "--no-build-isolation", setup_detection.SOURCE)]
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("nothing to do") and told[-1] == "installed detectron2: 0.6"


def test_one_that_is_there_but_broken_is_an_error_that_names_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "detectron2").mkdir()
    (tmp_path / "detectron2" / "__init__.py").write_text("raise ImportError('no such symbol')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(setup_detection, "missing", lambda: None)
    with pytest.raises(RingbenchError, match=r"no such symbol.*pip uninstall detectron2.*bench setup detection"):
        setup_detection.command()


def test_offline_nothing_is_downloaded(monkeypatch):
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    monkeypatch.setattr(setup_detection, "missing", lambda: "not there")
    with pytest.raises(Unavailable, match="BENCH_OFFLINE=1"):
        setup_detection.command()


def test_a_failure_of_pip_is_told_in_one_sentence_without_its_warnings(monkeypatch):
    failing = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found\nWARNING: a notice\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failing)
    monkeypatch.setattr(setup_detection, "missing", lambda: "not there")
    with pytest.raises(Unavailable, match=r"^pip download failed: No matching distribution found$"):
        setup_detection.command()
