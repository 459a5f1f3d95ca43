import copy
import csv
import json
import multiprocessing
import random

import pytest

from bench import leaderboard, results
from ringbench.errors import RingbenchError, UsageError


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
        "delta": None,
        "off_reference": False,
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
        ({"converged": True}, [control(70.0)], "ok", None),
        ({"value": 71.9}, [control(70.0)], "suspect", "no better than random_resnet18"),
        ({"value": 40.0}, [control(70.0)], "suspect", "no better than random_resnet18"),
        ({"value": 71.9}, [control(70.0, fingerprint="other images")], "ok", None),
        ({"value": 71.9}, [control(70.0, task="mnist_knn")], "ok", None),
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
    delta, flagged = results.reference_delta(record(reference={"metric": "top1", "score": score, "std": std, "source": "paper"}))
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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "\x00\x01"])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    path = results.path_of(tmp_path, "enc", "digits_knn", "knn@1", 0)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RingbenchError, match=r"seed0\.json"):
        results.read_all(tmp_path)


def test_a_result_of_a_later_schema_is_refused(tmp_path):
    path = results.write(tmp_path, record())
    path.write_text(json.dumps(record() | {"schema": results.SCHEMA + 1}))
    with pytest.raises(RingbenchError, match="update ringbench"):
        results.read(path)


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
    assert [row[0] for row in leaderboard.cells(table)[1:]] == ["1", "2", "-", "-"]
    assert [row[3] for row in leaderboard.cells(table)[1:]] == ["2/2", "2/2", "1/2", "1/2"]


def test_protocols_never_share_a_table(board):
    results.write(board, record("good", protocol="knn@2", value=95.0))
    both = leaderboard.tables(leaderboard.entries(results.read_all(board)))
    assert [table.protocol for table in both] == ["knn@1", "knn@2"]
    assert dict((r[0], r[2]) for r in both[0].rows)["good"] == 90.5


@pytest.mark.parametrize("format", ["csv", "md", "json"])
@pytest.mark.parametrize("wide", [False, True])
def test_exporting_again_gives_the_same_bytes_whatever_the_order_of_writing(board, tmp_path_factory, format, wide):
    first = leaderboard.export(board, format, wide=wide)
    records = results.read_all(board)
    random.Random(3).shuffle(records)
    other = tmp_path_factory.mktemp("other")
    for one in records:
        results.write(other, copy.deepcopy(one))
    assert leaderboard.export(other, format, wide=wide) == first
    assert first.endswith("\n")


def test_the_csv_has_one_row_for_each_backbone_task_and_metric(board):
    path = board / "board.csv"
    leaderboard.write(board, "csv", path)
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = {(row["backbone"], row["task"], row["metric"]): row for row in reader}
    assert reader.fieldnames == leaderboard.LONG_COLUMNS
    assert len(rows) == 2 * (2 + 2 + 1 + 2)
    row = rows["good", "digits_knn", "top1"]
    assert (row["value"], row["ci_low"], row["seeds"], row["status"]) == ("90.5000", "88.5000", "2", "ok")
    assert row["seed_std"] == "0.7071"
    assert {rows["chance", task, "top1"]["status"] for task in ("digits_knn", "mnist_knn")} == {"suspect", "ok"}


def test_a_column_measured_on_other_images_is_not_ranked_with_the_rest(board):
    results.write(board, record("odd", value=99.0, fingerprint="other images"))
    entry = next(e for e in leaderboard.entries(results.read_all(board)) if e.backbone == "odd")
    assert entry.status == "suspect"
    assert "other images" in entry.reasons[0]


def test_a_control_that_came_later_is_still_judged_by(tmp_path):
    results.write(tmp_path, record(value=71.0))
    assert leaderboard.entries(results.read_all(tmp_path))[0].status == "ok"
    results.write(tmp_path, control(70.0))
    assert leaderboard.entries(results.read_all(tmp_path))[0].status == "suspect"


def test_an_unknown_task_or_format_is_a_usage_error(board):
    with pytest.raises(UsageError, match="digits_knn"):
        leaderboard.export(board, "csv", ["imagenet_*"])
    with pytest.raises(UsageError, match="csv, md or json"):
        leaderboard.export(board, "xlsx")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_name_and_no_number_is_cut_however_narrow_the_terminal(tmp_path, capsys, monkeypatch, columns):
    tasks = [f"a_rather_long_task_name_{i}" for i in range(12)]
    for i, task in enumerate(tasks):
        results.write(tmp_path, record("a_backbone", task=task, value=70.0 + i))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    leaderboard.show(tmp_path)
    shown = capsys.readouterr().out
    assert all(task in shown for task in tasks)
    assert all(f"{70 + i}.00 ±2.00" in shown for i in range(12))
