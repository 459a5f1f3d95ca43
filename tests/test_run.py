"""`bench run` from the command line to the result files."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import trunk_state
from PIL import Image
from typer.testing import CliRunner

from backbones import loading
from backbones.spec import BackboneSpec
from bench import cli, provenance, results, runner
from imagesets import image_set as imagesets
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError

REGISTRY = """
backbones:
  lost:
    title: a file that is not there
    arch: resnet18
    source: nowhere/lost.pth
    pipeline: rgb|resize(32,bilinear)|scale01|normalize(imagenet)
imagesets:
  strokes:
    title: two kinds of stripes
    provider: folder
    geometry: resize(32x32,bilinear)
  absent:
    title: a folder that is not there
    provider: folder
tasks:
  "{imageset}_knn": {imageset: [strokes, absent], protocol: knn@1}
  "{imageset}_logreg": {imageset: [strokes, absent], protocol: logreg@1}
"""


BACKBONE = BackboneSpec(name="random", title="t", arch="resnet18", source="random", seed=7, pipeline="rgb")


@pytest.fixture
def workplace(tmp_path):
    """A working folder with a registry and an image set of horizontal and vertical stripes."""
    (tmp_path / "registry.yaml").write_text(REGISTRY)
    rng = np.random.default_rng(0)
    for i in range(60):
        stripes = np.zeros((24, 24), np.uint8)
        stripes[:: rng.integers(2, 5)] = rng.integers(100, 255)
        image = stripes if i % 2 else stripes.T
        folder = tmp_path / "data" / "strokes" / ("horizontal" if i % 2 else "vertical")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    return tmp_path


def bench(*arguments):
    return CliRunner().invoke(cli.app, ["run", *arguments])


def spawn(*arguments, **popen):
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", "bench.cli", "run", *arguments]
    return subprocess.Popen(command, env=environment, text=True, preexec_fn=_listen_to_ctrl_c, **popen)


def _listen_to_ctrl_c():
    """A test run that was put into the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_number_carries_everything_it_depends_on(workplace):
    done = bench("--backbone", "random_resnet18", "--task", "strokes_logreg")
    assert done.exit_code == 0, done.output
    record = results.read(workplace / "results" / "random_resnet18" / "strokes_logreg" / "logreg@1.seed0.json")
    assert record["protocol"] == "logreg@1"
    assert record["metrics"]["top1"].keys() == {"value", "ci_low", "ci_high", "n"}
    assert record["metrics"]["top1"]["value"] > 80
    assert record["n"] == {"train": 38, "val": 10, "test": 12}
    assert record["certificate"]["trunk_sha256"] == record["trunk_sha256"]
    assert len(record["fingerprint"]) == len(record["split_hash"]) == 64
    assert record["pipeline"].startswith("rgb(pil)|resize(32x32,bilinear)|scale01|normalize(0.")
    assert record["selected_on"] == "val"
    assert record["converged"] is True
    assert len(record["grid"]) == 45
    assert record["grid_edge"] == (record["selected"]["l2"] in (record["grid"][0], record["grid"][-1]))
    assert (record["device"], record["dtype"]) == ("cpu", "float32")
    assert record["versions"].keys() >= {"torch", "torchvision", "ringbench", "python"}
    assert record["seconds"].keys() >= {"load", "extract", "probe"}
    assert (record["status"], record["reasons"]) == ("ok", [])
    assert record["features"]["test"]["device"] == "cpu"
    assert record["interval"] == "95% bootstrap over images"
    assert any("res5 map" in note for note in record["notes"])


def test_what_is_already_measured_is_skipped_and_said(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn")
    bench(*arguments)
    path = workplace / "results" / "random_resnet18" / "strokes_knn" / "knn@1.seed0.json"
    before = path.read_bytes()
    again = bench(*arguments)
    assert again.exit_code == 0
    assert "1 done" in again.output
    assert path.read_bytes() == before
    assert "1 measured" in bench(*arguments, "--force").output


def test_random_weights_follow_the_seed_and_every_seed_has_its_file(workplace):
    bench("--backbone", "random_resnet18", "--task", "strokes_knn", "--seed", "0", "--seed", "1")
    first, second = results.read_all(workplace / "results")
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["trunk_sha256"] != second["trunk_sha256"]
    assert first["split_hash"] == second["split_hash"]


def test_what_is_missing_is_told_and_the_rest_runs(workplace):
    done = bench("--backbone", "random_resnet18", "--backbone", "lost", "--task", "strokes_knn", "--task", "absent_knn")
    assert done.exit_code == 3
    assert "1 measured, 3 unavailable" in done.output
    assert str(workplace / "data" / "absent") in done.output
    assert "lost.pth does not exist" in done.output
    assert len(results.read_all(workplace / "results")) == 1


def test_a_failure_is_written_down_the_rest_runs_and_a_rerun_tries_again(workplace):
    (workplace / "data" / "broken" / "a").mkdir(parents=True)
    (workplace / "data" / "broken" / "b").mkdir(parents=True)
    with (workplace / "registry.yaml").open("a") as registry:
        registry.write("  broken_knn: {imageset: broken, protocol: knn@1, title: t}\n")
    text = (workplace / "registry.yaml").read_text()
    (workplace / "registry.yaml").write_text(
        text.replace("imagesets:\n", "imagesets:\n  broken: {title: damaged images, provider: folder}\n")
    )
    for i in range(20):
        (workplace / "data" / "broken" / "ab"[i % 2] / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
    arguments = ("--backbone", "random_resnet18", "--task", "broken_knn", "--task", "strokes_knn", "--task", "absent_knn")
    done = bench(*arguments)
    assert done.exit_code == 1
    assert "1 failed, 1 measured, 1 unavailable" in done.output
    failure = workplace / "results" / "random_resnet18" / "broken_knn" / "knn@1.seed0.failed.json"
    assert ".png" in json.loads(failure.read_text())["reasons"][0]
    for path in (workplace / "data" / "broken").rglob("*.png"):
        path.write_bytes((workplace / "data" / "strokes" / "vertical" / "0.png").read_bytes())
    assert bench("--backbone", "random_resnet18", "--task", "broken_knn").exit_code == 0
    assert not failure.exists()


def full_disk_below(monkeypatch, folder):
    """No file below `folder` can be written any more."""
    mkstemp = tempfile.mkstemp

    def refuse(dir, prefix, suffix):
        if folder in Path(dir).resolve().parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{dir}/{prefix}xyz{suffix}")
        return mkstemp(dir=dir, prefix=prefix, suffix=suffix)

    monkeypatch.setattr(tempfile, "mkstemp", refuse)


def test_a_disk_full_of_results_is_told_of_each_cell_and_costs_none_that_was_measured(workplace, monkeypatch):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_*")
    bench("--backbone", "random_resnet18", "--task", "strokes_knn")
    with monkeypatch.context() as patch:
        full_disk_below(patch, workplace / "results")
        done = bench(*arguments, "--seed", "0", "--seed", "1", "--json")
    assert done.exit_code == 1
    cells = json.loads(done.stdout)
    assert [cell["state"] for cell in cells] == ["done", "failed", "failed", "failed"]
    path = workplace / "results" / "random_resnet18" / "strokes_logreg" / "logreg@1.seed0.json"
    assert f"{path.relative_to(workplace)}: No space left on device" in cells[1]["reason"]
    assert "Traceback" not in done.stderr and ".tmp" not in done.stderr
    assert len(results.read_all(workplace / "results")) == 1
    assert "1 done, 1 measured" in bench(*arguments).output


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_with_features_is_told_in_a_sentence_and_the_next_run_goes_on(workplace, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse) if call == "fsync" else patch.setattr(Path, "replace", refuse)
        done = bench("--backbone", "random_resnet18", "--task", "strokes_knn")
    assert done.exit_code == 1
    assert "No space left on device" in done.output and "Traceback" not in done.output
    assert str(workplace / "home") in done.output
    assert bench("--backbone", "random_resnet18", "--task", "strokes_knn").exit_code == 0


def test_a_failure_written_down_can_be_understood_later(workplace, monkeypatch):
    def break_down(*_, **__):
        raise ZeroDivisionError("division by nothing")

    monkeypatch.setattr(runner, "measure", break_down)
    bench("--backbone", "random_resnet18", "--task", "strokes_knn", "--dtype", "float32")
    (failure,) = results.read_all(workplace / "results")
    assert failure["reasons"] == ["ZeroDivisionError: division by nothing (--debug shows where)"]
    assert any("break_down" in line for line in failure["traceback"])
    assert failure["traceback"][-1] == "ZeroDivisionError: division by nothing"
    assert failure["asked"] == {"source": "random", "device": "auto", "dtype": "float32", "data": str(workplace / "data")}
    assert failure["versions"].keys() >= {"torch", "ringbench", "python"} and failure["created"]


def test_versions_name_the_commit_of_a_checkout_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True)

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    versions = provenance.versions.__wrapped__
    assert "commit" not in versions()
    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD").stdout.strip()
    assert versions()["commit"] == commit
    (tmp_path / "file").write_text("two")
    assert versions()["commit"] == f"{commit}-dirty"
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "installed")
    assert "commit" not in versions()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert "commit" not in versions()


def test_a_result_made_from_other_images_does_not_stand_for_these(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn")
    bench(*arguments)
    (workplace / "data" / "strokes" / "vertical" / "0.png").unlink()
    done = bench(*arguments)
    assert done.exit_code == 1
    assert "measured with other images" in done.output
    assert "--force" in done.output
    assert bench(*arguments, "--force").exit_code == 0


def test_another_dtype_is_another_number(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn")
    bench(*arguments)
    assert "measured with other dtype" in bench(*arguments, "--dtype", "bfloat16").output


def test_json_is_all_that_stdout_holds(workplace):
    done = bench("--backbone", "random_resnet18", "--task", "strokes_knn", "--task", "absent_knn", "--json")
    cells = json.loads(done.stdout)
    assert [cell["state"] for cell in cells] == ["unavailable", "measured"]
    assert cells[1]["result"]["metrics"]["top1"]["n"] == 12
    assert "1 measured" in done.stderr


def test_a_dry_run_says_what_it_would_cost_and_writes_no_result(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn", "--task", "absent_knn", "--dry-run")
    done = bench(*arguments)
    assert done.exit_code == 3
    assert "60 images of 32 x 32 px through the trunk" in done.output
    assert not (workplace / "results").exists()
    bench("--backbone", "random_resnet18", "--task", "strokes_knn")
    assert "done" in bench(*arguments).output
    assert "60 images of 32 x 32 px through the trunk" in bench(*arguments, "--force").output
    next((workplace / "results").rglob("knn@1.seed0.json")).unlink()
    assert "features cached" in bench(*arguments).output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--backbone", "random_resnet19", "--task", "strokes_knn"), 'did you mean "random_resnet18"'),
        (("--backbone", "random_resnet18", "--task", "stroke_knn"), "strokes_knn"),
        (("--backbone", "nothing_*", "--task", "strokes_knn"), "nothing_*"),
        (("--backbone", "random_resnet18", "--task", "strokes_knn", "--seed", "x"), "seed"),
    ],
)
def test_a_wrong_request_is_a_usage_error(workplace, arguments, sentence):
    done = bench(*arguments)
    assert done.exit_code == 2
    assert sentence in done.output
    assert not (workplace / "results").exists()


@pytest.mark.parametrize("option", [("--device", "gpu"), ("--dtype", "int8")])
def test_an_impossible_device_or_dtype_measures_nothing(workplace, option):
    done = bench("--backbone", "random_resnet18", "--task", "strokes_knn", *option)
    assert done.exit_code == 2
    assert option[1] in done.output
    assert not results.read_all(workplace / "results")


def test_what_is_not_there_is_told_within_two_seconds_without_loading_torch_or_touching_the_network(workplace):
    code = (
        "import sys, socket\n"
        "def refuse(*_): raise AssertionError('the network was touched')\n"
        "socket.socket.connect = refuse\n"
        "sys.argv = ['bench', 'run', '--backbone', 'torchvision_resnet18', '--task', 'digits_knn']\n"
        "from bench import cli\n"
        "try: cli.main()\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "resnet18-f37072fd.pth is not in" in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # nothing waits for a network, so its own time is the time it takes
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_warm_run_touches_no_network(workplace, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    assert bench("--backbone", "random_resnet18", "--task", "strokes_knn").exit_code == 0


def test_a_run_killed_after_its_first_result_is_finished_by_the_next(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_*", *[x for n in range(8) for x in ("--seed", str(n))])
    process = spawn(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not list((workplace / "results").glob("*/*/*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = {path: path.read_bytes() for path in (workplace / "results").glob("*/*/*.seed?.json")}
    assert 1 <= len(kept) < 16
    assert f"{len(kept)} done, {16 - len(kept)} measured" in bench(*arguments).output
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert len(results.read_all(workplace / "results")) == 16


def test_ctrl_c_says_how_to_resume_and_leaves_no_half_written_file(workplace):
    process = spawn(
        *("--backbone", "random_resnet18", "--task", "strokes_knn", *[x for n in range(40) for x in ("--seed", str(n))]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not list((workplace / "results").glob("*/*/*.json")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "same command again" in complaint
    assert "Traceback" not in complaint
    assert results.read_all(workplace / "results")
    assert not list((workplace / "results").rglob("*.tmp"))


def test_every_task_sees_the_same_features_of_an_image_whatever_is_cached(workplace, monkeypatch):
    """CASES C8. Each task is a run of its own with an empty cache; what its probe is given is compared bit by bit."""
    torch.save(trunk_state(), workplace / "enc.pth")
    text = (workplace / "registry.yaml").read_text()
    entry = "  enc: {title: t, arch: resnet18, source: ./enc.pth, pipeline: rgb|scale01|normalize(imagenet)}\n"
    probe = "  brief@1: {title: t, probe: sgd, level: prepool, settings: {epochs: 1}, source: none}\n"
    tasks = "  strokes_brief: {imageset: strokes, protocol: brief@1}\n"
    text = text.replace("backbones:\n", "backbones:\n" + entry).replace("tasks:\n", f"protocols:\n{probe}tasks:\n{tasks}")
    (workplace / "registry.yaml").write_text(text)
    measure, seen = runner.measure, {}

    def watching(protocol, images, trainval, test, **options):
        rows = np.concatenate([trainval.array, test.array])
        pooled = rows.mean((2, 3), dtype=np.float32) if protocol.level == "prepool" else rows
        order = np.argsort(np.concatenate([trainval.indices, test.indices]))
        seen[protocol.name] = pooled[order]
        return measure(protocol, images, trainval, test, **options)

    monkeypatch.setattr(runner, "measure", watching)
    for i, task in enumerate(("strokes_knn", "strokes_logreg", "strokes_brief")):
        monkeypatch.setenv("BENCH_HOME", str(workplace / f"home{i}"))
        done = bench("--backbone", "enc", "--task", task)
        assert done.exit_code == 0, done.output
    assert seen["knn@1"].std() > 0 and len(seen["knn@1"]) == 60
    assert seen["knn@1"].tobytes() == seen["logreg@1"].tobytes()
    np.testing.assert_allclose(seen["brief@1"], seen["knn@1"], rtol=1e-5, atol=1e-6)
    assert len({record["trunk_sha256"] for record in results.read_all(workplace / "results")}) == 1


@pytest.mark.parametrize("which", ["trunk", "_running"])
def test_a_probe_that_moves_the_weights_is_found_out(workplace, monkeypatch, which):
    measure, kept = runner.measure, []
    load = loading.load

    def keeping(*args, **kwargs):
        kept.append(load(*args, **kwargs))
        return kept[0]

    def meddling(*args, **kwargs):
        next(getattr(kept[0], which).parameters()).data.add_(1)
        return measure(*args, **kwargs)

    monkeypatch.setattr(loading, "load", keeping)
    monkeypatch.setattr(runner, "measure", meddling)
    done = bench("--backbone", "random_resnet18", "--task", "strokes_knn")
    assert done.exit_code == 1
    assert "weights of a frozen backbone changed" in done.output


def test_groups_of_test_images_are_what_the_interval_is_drawn_from(workplace):
    rows = ["path,label,group"]
    for path in sorted((workplace / "data" / "strokes").rglob("*.png")):
        for copy in range(3):  # three frames of every image
            target = path.with_name(f"{path.stem}_{copy}.png")
            target.write_bytes(path.read_bytes())
            rows.append(f"{target.relative_to(workplace / 'data' / 'strokes')},{path.parent.name},{path.stem}")
    (workplace / "data" / "strokes" / "frames.csv").write_text("\n".join(rows))
    with (workplace / "registry.yaml").open("a") as registry:
        registry.write("  frames_knn: {imageset: frames, protocol: knn@1}\n")
    text = (workplace / "registry.yaml").read_text()
    entry = "  frames: {title: t, provider: manifest, root: strokes, manifest: frames.csv, geometry: 'resize(32x32,bilinear)'}\n"
    (workplace / "registry.yaml").write_text(text.replace("imagesets:\n", "imagesets:\n" + entry))
    done = bench("--backbone", "random_resnet18", "--task", "frames_knn")
    assert done.exit_code == 0, done.output
    record = results.read(workplace / "results" / "random_resnet18" / "frames_knn" / "knn@1.seed0.json")
    assert record["interval"] == "95% bootstrap over groups of images"
    assert record["n"]["test"] == 36


def test_a_skipped_image_is_told_and_does_not_stand_for_a_whole_set(workplace):
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn")
    for name in ("vertical/0.png", "horizontal/1.png"):  # the first of each class, the one whose size is looked at among them
        (workplace / "data" / "strokes" / name).write_bytes(b"no image")
    skipping = bench(*arguments, "--on-bad-image", "skip")
    assert "images skipped" in skipping.output
    (record,) = results.read_all(workplace / "results")
    assert sum(record["n_skipped"].values()) == 2
    stopping = bench(*arguments)
    assert stopping.exit_code == 1
    assert "some of them skipped" in stopping.output


def test_a_broken_result_of_one_cell_costs_no_other_cell_its_number(workplace):
    for task in ("strokes_logreg", "absent_knn"):
        broken = results.path_of(workplace / "results", "random_resnet18", task, "logreg@1" if "log" in task else "knn@1", 0)
        broken.parent.mkdir(parents=True)
        broken.write_text("<<<<<<< ours")
    done = bench("--backbone", "random_resnet18", "--task", "strokes_*")
    assert done.exit_code == 1
    assert "1 failed, 1 measured" in done.output
    assert "is not a readable result" in done.output


def test_images_replaced_by_others_of_the_same_size_are_not_answered_from_the_cache(workplace):
    for path in (workplace / "data" / "strokes").rglob("*.png"):
        image = Image.open(path)
        image.save(path.with_suffix(".bmp"))
        path.unlink()
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn", "--force")
    bench(*arguments)
    before = results.read_all(workplace / "results")[0]["metrics"]["top1"]["value"]
    for i, path in enumerate(sorted((workplace / "data" / "strokes").rglob("*.bmp"))):
        noise = np.random.default_rng(i).integers(0, 256, (24, 24), dtype=np.uint8)
        size = path.stat().st_size
        Image.fromarray(noise).save(path)
        assert path.stat().st_size == size
    bench(*arguments)
    after = results.read_all(workplace / "results")[0]["metrics"]["top1"]["value"]
    assert before == 100.0
    assert after < 90.0


TOO_SMALL = {  # files of the set -> what is told, by task
    "a/0": {"tiny_knn": "has one class, 'a'"},
    "a/0 a/1 a/2 a/3": {"tiny_knn": "has one class, 'a'"},
    "a/0 b/0": {"tiny_knn": "no class has images to spare"},
    "a/0 a/1 b/0 b/1": {
        "tiny_knn": "has no val image, which knn@1 chooses its settings on",
        "tiny_logreg": "has no val image, which logreg@1 chooses its settings on",
    },
    "train/a/0 train/b/0 val/a/0 val/b/0 test/a/0 test/b/0": {"tiny_knn": None, "tiny_logreg": None},
}


@pytest.mark.parametrize("keys", TOO_SMALL)
def test_a_set_too_small_to_measure_on_is_told_so_in_a_sentence(workplace, keys):
    text = (workplace / "registry.yaml").read_text().replace("[strokes, absent]", "[strokes, absent, tiny]")
    entry = "  tiny: {title: t, provider: folder, geometry: 'resize(32x32,bilinear)'}\n"
    (workplace / "registry.yaml").write_text(text.replace("imagesets:\n", "imagesets:\n" + entry))
    for seed, key in enumerate(keys.split()):
        path = workplace / "data" / "tiny" / f"{key}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24), dtype=np.uint8)).save(path)
    for task, sentence in TOO_SMALL[keys].items():
        done = bench("--backbone", "random_resnet18", "--task", task)
        assert done.exit_code == (1 if sentence else 0), done.output
        assert sentence is None or (sentence in done.output and "Error" not in done.output)


def test_images_of_one_group_alone_are_too_few_to_cut_a_test_split_from(tmp_path):
    rows = [f"{i}.png,{'ab'[i % 2]},track" for i in range(8)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    for row in rows:
        Image.new("L", (8, 8)).save(tmp_path / row.partition(",")[0])
    spec = ImagesetSpec(name="tracks", title="t", provider="manifest", manifest="list.csv", root=".")
    with pytest.raises(RingbenchError, match="no class has groups of images to spare"):
        imagesets.load(spec, tmp_path).require_measurable()


def test_names_that_are_no_text_are_measured_and_told_in_escapes(workplace):
    folder = os.fsencode(workplace / "data" / "strokes")
    try:
        Path(os.fsdecode(folder + b"/vert\xefcal")).mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    for path in (workplace / "data" / "strokes" / "vertical").iterdir():
        path.rename(os.fsdecode(folder + b"/vert\xefcal/caf\xe9 " + os.fsencode(path.name)))
    (workplace / "data" / "strokes" / "vertical").rmdir()
    arguments = ("--backbone", "random_resnet18", "--task", "strokes_knn")
    next(Path(os.fsdecode(folder + b"/vert\xefcal")).iterdir()).write_bytes(b"no image")
    for options, code, sentence in (((), 1, r"vert\udcefcal/caf\udce9"), (("--on-bad-image", "skip"), 0, "1 measured")):
        process = spawn(*arguments, *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        told, _ = process.communicate()
        assert process.returncode == code and sentence in told and "Error" not in told, told


def test_an_encoder_without_a_random_control_is_told_so(workplace):
    state = {k: v for k, v in loading.load(BACKBONE).trunk.state_dict().items()}
    torch.save(state, workplace / "mine.pth")
    text = (workplace / "registry.yaml").read_text()
    entry = "  mine: {title: t, arch: resnet18, source: mine.pth, pipeline: 'rgb|resize(32,bilinear)|scale01'}\n"
    (workplace / "registry.yaml").write_text(text.replace("backbones:\n", "backbones:\n" + entry))
    assert "no random control" in bench("--backbone", "mine", "--task", "strokes_knn").output
    bench("--backbone", "random_resnet18", "--task", "strokes_knn")
    assert "no random control" not in bench("--backbone", "mine", "--task", "strokes_knn", "--force").output
