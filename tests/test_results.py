import copy
import csv
import json
import multiprocessing
import random
import re

import pytest

from bench import board as board_text
from bench import leaderboard, results
from ringbench.errors import RingbenchError, UsageError

INPUTS = {"backbone": "pipeline", "protocol": "settings of knn@1", "images": "images, splits, geometry", "dtype": "float32"}


def record(backbone="enc", task="digits_knn", seed=0, value=80.0, half=2.0, *, source="file.pth", **changes):
    """A result as the runner writes it, with only what judging and tabulating look at."""
    score = {"value": value, "ci_low": value - half, "ci_high": value + half, "n": 360}
    made = {
        "schema": results.SCHEMA,
        "backbone": backbone,
        "task": task,
        "protocol": "knn@1",
        "imageset": task.split("_")[0],
        "seed": seed,
        "status": "ok",
        "reasons": [],
        "metric": "top1",
        "metrics": {"top1": score, "mean_per_class": score | {"value": value - 1}},
        "chance": {"top1": 10.0, "mean_per_class": 10.0},
        "converged": None,
        "certificate": {"source": source, "arch": "resnet18", "stem": "imagenet"},
        "trunk_sha256": f"trunk of {backbone}",
        "fingerprint": "images",
        "split_hash": "splits",
        "reference": None,
        "inputs": INPUTS | {"weights": f"file of {backbone}"},
        "n_skipped": {"trainval": 0, "test": 0},
        "grid_edge": False,
        "selected_on": "val",
        "level": "pooled",
        "pipeline": "rgb(pil)",
        "certificate_sha256": "certificate",
        "dtype": "float32",
        "device": "cpu",
    }
    return made | changes


def control(value=70.0, **changes):
    return record("random_resnet18", value=value, source="random", **changes)


@pytest.mark.parametrize(
    ("changes", "others", "status", "reason"),
    [
        ({}, [], "ok", None),
        ({"value": 11.0}, [], "suspect", "at chance"),
        ({"converged": False}, [], "suspect", "did not converge"),
        ({"n_skipped": {"trainval": 0, "test": 2}}, [], "suspect", "2 test images"),
        ({"converged": True}, [control(70.0)], "ok", None),
        ({"value": 71.9}, [control(70.0)], "suspect", "no better than random_resnet18"),
        ({"value": 40.0}, [control(70.0)], "suspect", "no better than random_resnet18"),
        ({"value": 71.9}, [control(70.0, fingerprint="other images")], "ok", None),
        ({"value": 71.9}, [control(70.0, task="mnist_knn")], "ok", None),
        ({"value": 71.9}, [control(70.0, inputs=record()["inputs"] | {"protocol": "another batch"})], "ok", None),
        ({"value": 71.9}, [control(70.0, inputs=record()["inputs"] | {"dtype": "bfloat16"})], "ok", None),
        ({"value": 71.9}, [record("another_encoder", value=70.0)], "ok", None),
        ({"source": "random", "value": 70.0}, [control(70.0)], "ok", None),
    ],
)
def test_a_number_that_speaks_of_a_fault_is_suspect(changes, others, status, reason):
    found, reasons = results.judge(record(**changes), others)
    assert found == status
    assert bool(reasons) == bool(reason)
    assert all(reason in told for told in reasons)


@pytest.mark.parametrize(("score", "std", "off"), [(81.0, None, False), (67.7, 0.3, True), (75.0, 3.0, False), (95.0, 0.1, True)])
def test_the_distance_to_a_published_score_is_told_and_flagged(score, std, off):
    measured = record()["metrics"]["top1"]
    delta, flagged = results.reference_delta(measured, {"metric": "top1", "score": score, "std": std, "source": "paper"})
    assert delta == pytest.approx(80.0 - score)
    assert flagged == off


def test_a_success_takes_the_place_of_a_failure(tmp_path):
    failed = {"status": "failed", "reasons": ["disk full"], "metrics": {}}
    results.write(tmp_path, record() | failed)
    assert [r["status"] for r in results.read_all(tmp_path)] == ["failed"]
    results.write(tmp_path, record())
    assert [r["status"] for r in results.read_all(tmp_path)] == ["ok"]


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    path = results.write(tmp_path, record())
    assert results.read(path) == record()
    assert path == tmp_path / "enc" / "digits_knn" / "knn@1.seed0.json"


DAMAGED = [
    json.dumps(record() | {"schema": results.SCHEMA} | change)
    for change in (
        {"inputs": {}},
        {"inputs": None},
        {"metrics": {}},
        {"metrics": []},
        {"metric": "top2"},
        {"n_skipped": None},
        {"inputs": list(record()["inputs"])},
        {"chance": 3},
        {"metrics": {"top1": record()["metrics"]["top1"] | {"value": float("nan")}}},
    )
]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 1}', "\x00\x01", json.dumps(record() | {"inputs": {}}), *DAMAGED]
)
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    path = results.path_of(tmp_path, "enc", "digits_knn", "knn@1", 0)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RingbenchError, match=r"seed0\.json"):
        results.read_all(tmp_path)


def test_a_score_that_is_no_number_is_named_with_its_file(tmp_path):
    path = results.write(tmp_path, record())
    spoilt = json.loads(path.read_text())
    metric = spoilt["metric"]
    spoilt["metrics"][metric]["value"] = "lots"
    path.write_text(json.dumps(spoilt))
    with pytest.raises(RingbenchError, match=rf"seed0\.json is not a whole result: {metric}\.value of its metrics is no number"):
        results.read_all(tmp_path)


def test_a_result_of_a_later_schema_is_refused(tmp_path):
    path = results.write(tmp_path, record())
    path.write_text(json.dumps(record() | {"schema": results.SCHEMA + 1}))
    with pytest.raises(RingbenchError, match="update ringbench"):
        results.read(path)


@pytest.mark.parametrize(
    "place",
    [
        "other/digits_knn/knn@1.seed0.json",  # cp -r results/enc results/other
        "enc/mnist_knn/knn@1.seed0.json",
        "enc/digits_knn/knn@1.seed1.json",
        "enc/digits_knn/logreg@1.seed0.json",
        "enc/digits_knn/knn@1.seed0.failed.json",
        "enc/digits_knn/knn@1.seed0 (copy).json",
        "enc/digits_knn/knn@1.seed00.json",
    ],
)
def test_a_result_in_the_place_of_another_cell_is_named_and_never_counted(tmp_path, place):
    original = results.write(tmp_path, record())
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_bytes(original.read_bytes())
    with pytest.raises(RingbenchError, match=rf"{re.escape(place)} is a copy .* enc/digits_knn/knn@1\.seed0\.json"):
        results.read_all(tmp_path)
    column = [*results.read_column(tmp_path, "digits_knn", "knn@1"), *results.read_column(tmp_path, "mnist_knn", "knn@1")]
    assert column == [record()]


def _write_many(folder, worker):
    for seed in range(25):
        results.write(folder, record(f"enc{worker}", seed=seed))
        results.write(folder, record("shared", seed=seed, value=50.0 + worker))


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(tmp_path, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results.read_all(tmp_path)) == 4 * 25 + 25
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.fixture
def board(tmp_path):
    """Three encoders and a control; `gap` lacks one of two tasks."""
    for task in ("digits_knn", "mnist_knn"):
        for seed in (0, 1):
            results.write(tmp_path, control(60.0 + seed, task=task, seed=seed))
            results.write(tmp_path, record("good", task=task, seed=seed, value=90.0 + seed))
    results.write(tmp_path, record("gap", task="digits_knn", value=99.0))
    results.write(tmp_path, record("chance", task="digits_knn", value=10.0))
    results.write(tmp_path, record("chance", task="mnist_knn", value=80.0))
    return tmp_path


def test_a_missing_or_suspect_task_blanks_the_mean_and_the_rank(board):
    (table,) = leaderboard.tables(leaderboard.entries(results.read_all(board)))
    assert [(name, mean, done) for name, _, mean, done in table.rows] == [
        ("good", 90.5, 2),
        ("random_resnet18", 60.5, 2),
        ("chance", None, 1),
        ("gap", None, 1),
    ]
    assert [row[0] for row in board_text._cells(table)[1:]] == ["1", "2", "-", "-"]
    assert [row[3] for row in board_text._cells(table)[1:]] == ["2/2", "2/2", "1/2", "1/2"]


def test_protocols_never_share_a_table(board):
    results.write(board, record("good", protocol="knn@2", value=95.0))
    both = leaderboard.tables(leaderboard.entries(results.read_all(board)))
    assert [table.protocol for table in both] == ["knn@1", "knn@2"]
    assert dict((r[0], r[2]) for r in both[0].rows)["good"] == 90.5


@pytest.mark.parametrize(("format", "wide"), [("csv", False), ("csv", True), ("md", False), ("json", False)])
def test_exporting_again_gives_the_same_bytes_whatever_the_order_of_writing(board, tmp_path_factory, format, wide):
    first = board_text.export(board, format, wide=wide)
    records = results.read_all(board)
    random.Random(3).shuffle(records)
    other = tmp_path_factory.mktemp("other")
    for one in records:
        results.write(other, copy.deepcopy(one))
    assert board_text.export(other, format, wide=wide) == first
    assert first.endswith("\n")


def test_the_csv_has_one_row_for_each_backbone_task_and_metric(board):
    path = board / "board.csv"
    board_text.write(board, "csv", path)
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = {(row["backbone"], row["task"], row["metric"]): row for row in reader}
    assert reader.fieldnames == board_text.LONG_COLUMNS
    assert len(rows) == 2 * (2 + 2 + 1 + 2)
    row = rows["good", "digits_knn", "top1"]
    assert (row["value"], row["seeds"], row["status"]) == ("90.5000", "2", "ok")
    assert float(row["ci_low"]) == pytest.approx(90.5 - (2**2 + (1.96 * 0.5**0.5 / 2**0.5) ** 2) ** 0.5, abs=1e-4)
    assert row["seed_std"] == "0.7071"
    assert {rows["chance", task, "top1"]["status"] for task in ("digits_knn", "mnist_knn")} == {"suspect", "ok"}


def status_of(folder, backbone, task="digits_knn"):
    return next(e for e in leaderboard.entries(results.read_all(folder)) if (e.backbone, e.task) == (backbone, task))


@pytest.mark.parametrize("part", ["images", "protocol"])
def test_a_number_measured_on_something_else_than_the_rest_of_its_column_is_not_ranked(board, part):
    for seed in range(9):  # backbones are counted, not records
        results.write(board, record("odd", value=99.0, seed=seed, inputs=INPUTS | {"weights": "w", part: "other"}))
    odd = status_of(board, "odd")
    assert odd.status == "suspect"
    assert "other images, splits or settings" in odd.reasons[0]
    assert status_of(board, "good").status == "ok"


def test_of_two_numbers_measured_on_different_things_neither_is_ranked(tmp_path):
    results.write(tmp_path, record("one", inputs=INPUTS | {"weights": "w", "images": "a"}))
    results.write(tmp_path, record("two", inputs=INPUTS | {"weights": "w", "images": "b"}))
    assert [e.status for e in leaderboard.entries(results.read_all(tmp_path))] == ["suspect", "suspect"]


@pytest.mark.parametrize("part", ["weights", "backbone", "dtype"])
def test_seeds_measured_in_different_ways_are_not_ranked_as_one(tmp_path, part):
    results.write(tmp_path, record(seed=0))
    results.write(tmp_path, record(seed=1, inputs=INPUTS | {"weights": "file of enc", part: "other"}))
    (entry,) = leaderboard.entries(results.read_all(tmp_path))
    assert entry.status == "suspect"
    assert "the seeds were measured with different" in entry.reasons[0]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_seed_is_told_and_takes_nothing_from_the_others(board, failing):
    failure = {"status": "failed", "reasons": ["disk full"], "metrics": {}, "metric": "top1"}
    kept = ("schema", "backbone", "task", "protocol", "imageset", "seed")
    results.write(board, {k: v for k, v in record("half", seed=failing).items() if k in kept} | failure)
    results.write(board, record("half", seed=1 - failing, value=77.0))
    entry = status_of(board, "half")
    assert entry.status == "failed"
    assert entry.reasons == (f"seed {failing} failed: disk full",)
    assert entry.score().value == 77.0
    assert "half,digits_knn" in board_text.export(board, "csv")
    assert "77.00 ±2.00 !" in board_text.export(board, "md")


def test_a_backbone_that_only_failed_has_a_row_without_a_number(tmp_path):
    failure = {"status": "failed", "reasons": ["disk full"], "metrics": {}}
    results.write(tmp_path, record() | failure)
    (row,) = json.loads(board_text.export(tmp_path, "json"))
    assert (row["status"], row["value"], row["reasons"]) == ("failed", None, "seed 0 failed: disk full")
    assert "failed" in board_text.export(tmp_path, "md")


def test_the_delta_is_that_of_the_mean_over_seeds_and_only_of_its_metric(tmp_path):
    reference = {"metric": "top1", "score": 80.0, "std": None, "source": "paper"}
    for seed, value in enumerate((70.0, 80.0)):
        results.write(tmp_path, record(seed=seed, value=value, half=1.0, reference=reference, converged=seed == 1))
    rows = {row["metric"]: row for row in json.loads(board_text.export(tmp_path, "json"))}
    assert (rows["top1"]["value"], rows["top1"]["delta"], rows["top1"]["converged"]) == (75.0, -5.0, False)
    assert (rows["mean_per_class"]["reference"], rows["mean_per_class"]["delta"]) == (None, None)


def test_the_interval_of_several_seeds_holds_what_the_seeds_differ_by(tmp_path):
    for seed, value in enumerate((60.0, 70.0, 80.0)):
        results.write(tmp_path, record(seed=seed, value=value, half=2.0))
    score = leaderboard.entries(results.read_all(tmp_path))[0].score()
    half = (2.0**2 + (1.96 * 10 / 3**0.5) ** 2) ** 0.5
    assert (score.value, score.seed_std) == (70.0, 10.0)
    assert (score.ci_low, score.ci_high) == pytest.approx((70 - half, 70 + half))


def test_seeds_that_change_nothing_have_no_standard_deviation(tmp_path):
    for seed in range(3):
        results.write(tmp_path, record(seed=seed))
    row = next(row for row in csv.DictReader(board_text.export(tmp_path, "csv").splitlines()) if row["metric"] == "top1")
    assert (row["value"], row["ci_low"], row["ci_high"]) == ("80.0000", "78.0000", "82.0000")
    assert (row["seeds"], row["seed_std"]) == ("3", "")


def test_a_control_that_came_later_is_still_judged_by(tmp_path):
    results.write(tmp_path, record(value=71.0))
    assert leaderboard.entries(results.read_all(tmp_path))[0].status == "ok"
    results.write(tmp_path, control(70.0))
    assert leaderboard.entries(results.read_all(tmp_path))[0].status == "suspect"


def test_an_unknown_task_or_format_is_a_usage_error(board):
    with pytest.raises(UsageError, match="digits_knn"):
        board_text.export(board, "csv", ["imagenet_*"])
    with pytest.raises(UsageError, match="csv, md or json"):
        board_text.export(board, "xlsx")


@pytest.mark.parametrize("format", ["md", "json"])
def test_a_form_of_csv_that_other_formats_have_not_is_a_usage_error(board, format):
    with pytest.raises(UsageError, match=f"form of CSV and not of {format}"):
        board_text.export(board, format, wide=True)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_name_and_no_number_is_cut_however_narrow_the_terminal(tmp_path, capsys, monkeypatch, columns):
    tasks = [f"a_rather_long_task_name_{i}" for i in range(12)]
    for i, task in enumerate(tasks):
        results.write(tmp_path, record("a_backbone", task=task, value=70.0 + i))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    board_text.show(tmp_path)
    shown = capsys.readouterr().out
    assert all(task in shown for task in tasks)
    assert all(f"{70 + i}.00 ±2.00" in shown for i in range(12))
