"""Files that are whole or absent, and errors that say which."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringbench import files
from ringbench.errors import RingbenchError


@pytest.mark.parametrize("name", ["mkstemp", "fsync", "replace"])
def test_an_error_names_the_file_that_was_to_be_written_and_never_the_temporary_one(tmp_path, monkeypatch, name):
    def refuse(*arguments, **names):
        told = f"{tmp_path}/.wanted.json.abc.tmp" if name == "mkstemp" else None
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), told)

    owner = {"mkstemp": files.tempfile, "fsync": os, "replace": Path}[name]
    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_json(tmp_path / "wanted.json", {})
    assert caught.value.filename == str(tmp_path / "wanted.json")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file_is_told_by_its_own_name(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        files.write_text(tmp_path, "text")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path), None)


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, files.atomic_path(tmp_path / "wanted"):
        (tmp_path / "source").read_bytes()
    assert caught.value.filename == str(tmp_path / "source")


def test_json_brings_back_file_names_that_are_no_text_and_any_other(tmp_path):
    names = {os.fsdecode(b"caf\xe9.png"): ["\u00e9", "\U0001f600", "\\udce9", "\udce9\udc80"]}
    files.write_json(tmp_path / "names.json", names)
    assert json.loads((tmp_path / "names.json").read_text(encoding="utf-8")) == names
    assert files.digest(names) != files.digest(sorted(names))


def test_a_folder_is_one_process_at_a_time_and_free_again_after_it(tmp_path):
    folder = tmp_path / "runs" / "one"
    with files.exclusive(folder):
        code = f"from pathlib import Path\nfrom ringbench import files\nwith files.exclusive(Path({str(folder)!r})): print('in')"
        environment = os.environ | {"PYTHONPATH": str(Path(files.__file__).parent.parent)}
        other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert other.returncode == 1 and "another process is at work in" in other.stderr
        with files.exclusive(tmp_path / "runs" / "two"):
            pass
    with files.exclusive(folder):
        pass


def test_a_folder_is_one_under_all_its_names(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    monkeypatch.chdir(tmp_path / "run")
    with files.exclusive(tmp_path / "run"):
        for other in (tmp_path / "link", Path(), tmp_path / "run" / ".." / "run"):
            with pytest.raises(RingbenchError, match="another process is at work"), files.exclusive(other):
                pass
