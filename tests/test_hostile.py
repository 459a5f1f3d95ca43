"""Reading a hostile, broken or mistaken file runs nothing, ends soon, and says in one line what the file is."""

import argparse
import ast
import contextlib
import io
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import hostile
import mistaken
import numpy as np
import pytest
from torch import Tensor

from backbones import reading
from ringbench import places
from ringbench.errors import RingbenchError

ROOT = Path(__file__).resolve().parent.parent
KINDS = [hostile.bad_pickles, hostile.bad_tensors, mistaken.bad_archives, mistaken.broken, mistaken.mistaken]


def make_corpus(canary: Path) -> dict[str, hostile.Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its sparse and quantised tensors
        cases = [*hostile.attacks(canary), *(case for kind in KINDS for case in kind())]
    return {case.name: case for case in cases}


CASES = [*make_corpus(Path("canary"))]


def read(case: hostile.Case) -> reading.Document:
    path = Path.cwd() / case.filename
    path.write_bytes(case.content)
    return reading.read(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, hostile.Case]]:
    canary = tmp_path_factory.mktemp("corpus") / "canary"
    return canary, make_corpus(canary)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_broken_or_mistaken_file_runs_nothing_and_is_named_in_one_line(name, corpus):
    canary, cases = corpus
    case = cases[name]
    if case.says is None:
        assert any(isinstance(leaf, Tensor) for leaf in leaves(read(case).tree))
    else:
        with pytest.raises(RingbenchError) as error:
            read(case)
        line = str(error.value)
        assert re.search(case.says, line)
        assert line.startswith(str(Path.cwd() / case.filename))
        assert line.isprintable() and len(line) <= 500
    assert not canary.exists()
    assert not places.cache().exists() or not [*places.cache().iterdir()]


def leaves(tree: Any) -> list[Any]:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple | frozenset) else None
    return [tree] if children is None else [leaf for child in children for leaf in leaves(child)]


def test_the_attacks_of_the_corpus_work_on_an_ordinary_unpickler(corpus):
    canary, cases = corpus
    armed = [case for case in cases.values() if case.attack]
    assert len(CASES) >= 40 and len(armed) >= 20
    for case in armed:
        with contextlib.suppress(Exception):  # many fail right after they did their harm
            pickle.Unpickler(io.BytesIO(case.attack)).load()
        assert canary.exists(), case.name
        canary.unlink()


def test_the_sandbox_imports_opens_and_starts_nothing_while_it_reads_the_corpus(corpus, tmp_path):
    """Python's own audit of what a process does: the canary only shows attacks that succeed."""
    _, cases = corpus
    folder = tmp_path / "cases"
    folder.mkdir()
    for number, case in enumerate(cases.values()):
        if "needs over" not in (case.says or ""):  # those need the memory limit, which would end this process
            (folder / str(number)).write_bytes(case.content)
    audit = """
import ast, encodings.cp437, io, pathlib, sys, tarfile  # what zipfile and containers import when they first need it
from backbones.untrusted import containers, inert, skeleton
files = {path.name: io.BytesIO(path.read_bytes()) for path in pathlib.Path(sys.argv[1]).iterdir()}
events = set()
sys.addaudithook(lambda event, args: events.add(event))
for file in files.values():
    try:
        size = len(file.getbuffer())
        skeleton.Skeleton(containers.read(file, size), size)
    except (inert.Refused, RecursionError):
        pass
print(*events)
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", audit, str(folder)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"builtins.id", "compile"}  # compile: ast parses the header of an npy array


def test_files_with_changed_bytes_are_read_or_refused_and_fail_in_no_other_way(tmp_path):
    value = {**hostile.WEIGHTS, "args": argparse.Namespace(a=[1]), "n": np.float64(2), "arrays": (np.eye(2), np.array([{}]))}
    for name, data in {"zip": hostile.saved(value), "legacy": hostile.legacy(value), "plain": pickle.dumps(value, 4)}.items():
        (tmp_path / name).write_bytes(data)
    fuzz = """
import collections, io, pathlib, random, sys
from backbones.untrusted import containers, inert, sandbox, skeleton
sandbox._limit(1 << 30)
random.seed(0)
outcomes = collections.Counter()
files = [path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()]
for _ in range(3000):
    data = bytearray(random.choice(files))
    for _ in range(random.randint(1, 4)):
        place, length = random.randrange(len(data)), random.randint(0, 4)
        data[place : place + length] = random.randbytes(random.choice([length, 1, 9]))
    try:
        skeleton.Skeleton(containers.read(io.BytesIO(data), len(data)), len(data))
        outcomes["read"] += 1
    except (inert.Refused, MemoryError) as error:
        outcomes["refused"] += 1
print(outcomes["read"], outcomes["refused"])
"""
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", fuzz, tmp_path], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    were_read, were_refused = map(int, done.stdout.split())
    assert were_read > 100 and were_refused > 1000


def test_a_file_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(reading, "PATIENCE", 1)
    pairs = b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(60))  # hashing the last visits 2^60 tuples
    with pytest.raises(RingbenchError, match=r"took over 1 s to read"):
        read(hostile.Case("", hostile.program(b")q\x000", pairs, b"}h%cNs" % 60), None))


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_is_refused_without_opening_it(make, tmp_path):
    make(tmp_path / "model.pth")
    with pytest.raises(RingbenchError, match=r"model\.pth (is a directory|is a device, pipe|cannot be opened)"):
        reading.read(tmp_path / "model.pth")


def test_nothing_in_the_tree_loads_a_pickle_unsafely():
    offenders = []
    for path in [
        path
        for room in ["backbones", "bench", "benchmarks", "imagesets", "pretrain", "ringbench", "tests", "transfer"]
        for path in (ROOT / room).rglob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "torch", "joblib", "dill"):
                unsafe = any(alias.name in ("load", "loads") for alias in node.names)
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                unsafe = called in (
                    "pickle.load",
                    "pickle.loads",
                    "joblib.load",
                    "dill.load",
                    "dill.loads",
                    "torch.jit.load",
                    "torch.hub.load",
                )
                unsafe |= called == "torch.load" and given.get("weights_only") != "True"
                unsafe |= given.get("allow_pickle") == "True" or given.get("weights_only", "True") != "True"
            else:
                continue
            if unsafe:
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []
