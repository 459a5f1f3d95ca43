"""The leaderboard: a pure function of the result files. The same files give the same bytes, wherever and whenever.

One table for each protocol, so that numbers of different protocols never share a column. Seeds are averaged. A backbone is
ranked by its mean over all tasks of the table, and only if every one of them is there and sound; otherwise its mean is blank.
"""

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, stdev

from bench import results
from bench.results import Record
from ringbench import files
from ringbench.errors import UsageError

LONG_COLUMNS = [
    *(
        "schema",
        "backbone",
        "task",
        "imageset",
        "protocol",
        "metric",
        "value",
        "ci_low",
        "ci_high",
        "n_test",
        "seeds",
        "seed_std",
    ),
    *("status", "reasons", "converged", "selected_on", "grid_edge", "reference", "delta", "off_reference", "level", "pipeline"),
    *("trunk_sha256", "certificate_sha256", "fingerprint", "split_hash", "dtype", "device"),
]


@dataclass(frozen=True)
class Entry:
    """One backbone on one task under one protocol, its seeds together."""

    backbone: str
    task: str
    protocol: str
    records: tuple[Record, ...]  # by seed
    status: str
    reasons: tuple[str, ...]

    @property
    def metric(self) -> str:
        return self.records[0]["metric"]

    def mean(self, field: str = "value", metric: str | None = None) -> float | None:
        values = [record["metrics"][metric or self.metric][field] for record in self.records if record["status"] != "failed"]
        return fmean(values) if values else None

    def seed_std(self, metric: str) -> float | None:
        values = [record["metrics"][metric]["value"] for record in self.records if record["status"] != "failed"]
        return stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Table:
    """All entries of one protocol: `rows` are (backbone, {task: entry}, mean or None, sound tasks), best first."""

    protocol: str
    tasks: list[str]
    rows: list[tuple[str, dict[str, Entry], float | None, int]]


def entries(records: Iterable[Record], tasks: Iterable[str] = ()) -> list[Entry]:
    """Group records into entries, judged anew against all the others (a control may have come later than what it judges)."""
    records = list(records)
    patterns = list(tasks)
    usual = _usual_images(records)
    cells = defaultdict(dict)
    for record in records:  # a failure read beside a success of the same seed gives way to it
        if not patterns or any(fnmatchcase(record["task"], pattern) for pattern in patterns):
            seeds = cells[record["backbone"], record["task"], record["protocol"]]
            if record["status"] != "failed" or record["seed"] not in seeds:
                seeds[record["seed"]] = record
    if patterns and not cells:
        known = sorted({record["task"] for record in records})
        raise UsageError(f"no result for task {', '.join(patterns)}; there are results for {', '.join(known) or 'none'}")
    return [_entry(*cell, [seeds[seed] for seed in sorted(seeds)], records, usual) for cell, seeds in sorted(cells.items())]


def tables(board: Iterable[Entry]) -> list[Table]:
    by_protocol = defaultdict(list)
    for entry in board:
        by_protocol[entry.protocol].append(entry)
    return [_table(protocol, by_protocol[protocol]) for protocol in sorted(by_protocol)]


def export(results_dir: Path, format: str, tasks: Iterable[str] = (), *, wide: bool = False) -> str:
    """The leaderboard as csv, md or json. A row is a backbone x task x metric; with `wide`, in csv, a protocol x backbone."""
    board = entries(results.read_all(results_dir), tasks)
    if format == "md":
        return "\n".join(_markdown(table) for table in tables(board))
    if format == "json":
        return json.dumps(_long_rows(board), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if format == "csv":
        return (
            _csv(_wide_rows(tables(board))) if wide else _csv([LONG_COLUMNS, *(list(row.values()) for row in _long_rows(board))])
        )
    raise UsageError(f"unknown format {format!r}; expected csv, md or json")


def _entry(backbone: str, task: str, protocol: str, group: list[Record], records: list[Record], usual: dict) -> Entry:
    statuses, reasons = [], []
    for record in group:
        status, why = results.judge(record, records)
        if status != "failed" and _images(record) != usual[task]:
            status, why = "suspect", [*why, "measured on other images or splits than the rest of the column"]
        statuses.append(status)
        reasons += why
    if len({record.get("trunk_sha256") for record in group}) > 1 and group[0]["certificate"]["source"] != "random":
        statuses.append("suspect")
        reasons.append("the seeds were measured with different weights")
    worst = next(status for status in ("failed", "suspect", "ok") if status in statuses)
    return Entry(backbone, task, protocol, tuple(group), worst, tuple(dict.fromkeys(reasons)))


def _images(record: Record) -> tuple[str, str]:
    return record["fingerprint"], record["split_hash"]


def _usual_images(records: list[Record]) -> dict[str, tuple[str, str]]:
    """For each task the image set and split that most of its results were measured on."""
    counts = defaultdict(Counter)
    for record in records:
        if record["status"] != "failed":
            counts[record["task"]][_images(record)] += 1
    return {task: max(counter, key=lambda images: (counter[images], images)) for task, counter in counts.items()}


def _table(protocol: str, board: list[Entry]) -> Table:
    tasks = sorted({entry.task for entry in board})
    by_backbone = defaultdict(dict)
    for entry in board:
        by_backbone[entry.backbone][entry.task] = entry
    rows = []
    for backbone, found in by_backbone.items():
        sound = [entry.mean() for entry in found.values() if entry.status == "ok"]
        rows.append((backbone, found, fmean(sound) if len(sound) == len(tasks) else None, len(sound)))
    rows.sort(key=lambda row: (row[2] is None, -(row[2] or 0.0), -row[3], row[0]))
    return Table(protocol, tasks, rows)


def _long_rows(board: list[Entry]) -> list[dict]:
    rows = []
    for entry in board:
        last = entry.records[-1]
        for metric in sorted(last["metrics"]) or [last["metric"]]:
            failed = entry.status == "failed" and not last["metrics"]
            values = dict.fromkeys(LONG_COLUMNS)
            values |= {key: last.get(key) for key in LONG_COLUMNS if key in last}
            values |= {"metric": metric, "status": entry.status, "reasons": "; ".join(entry.reasons)}
            values |= {"seeds": len(entry.records), "reference": (last.get("reference") or {}).get("score")}
            if not failed:
                values |= {key: entry.mean(key, metric) for key in ("value", "ci_low", "ci_high")}
                values |= {"n_test": last["metrics"][metric]["n"], "seed_std": entry.seed_std(metric)}
            rows.append(values)
    return rows


def _wide_rows(boards: list[Table]) -> list[list]:
    """One row for each protocol x backbone; a task that a protocol has not is blank there."""
    tasks = sorted({task for table in boards for task in table.tasks})
    rows = [["schema", "protocol", "rank", "backbone", "mean", "tasks_done", "tasks", *tasks]]
    for table in boards:
        for rank, (backbone, found, mean, done) in enumerate(table.rows, 1):
            scores = [found[task].mean() if task in found and found[task].status == "ok" else None for task in tasks]
            ranked = rank if mean is not None else None
            rows.append([results.SCHEMA, table.protocol, ranked, backbone, mean, done, len(table.tasks), *scores])
    return rows


def _csv(rows: Iterable[Iterable]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return text.getvalue()


def cells(table: Table) -> list[list[str]]:
    """The table as text, heading first: rank, backbone, tasks, mean, and how many of the tasks are there and sound."""
    rows = [["", "backbone", *table.tasks, "mean", "tasks"]]
    for rank, (backbone, found, mean, done) in enumerate(table.rows, 1):
        scores = [_score(found.get(task)) for task in table.tasks]
        overall = "" if mean is None else f"{mean:.2f}"
        rows.append([str(rank) if overall else "-", backbone, *scores, overall, f"{done}/{len(table.tasks)}"])
    return rows


def _score(entry: Entry | None) -> str:
    if entry is None or entry.mean() is None:
        return "" if entry is None else "failed"
    low, high = entry.mean("ci_low"), entry.mean("ci_high")
    mark = {"ok": "", "suspect": " ?", "failed": " !"}[entry.status]
    off = " *" if any(record.get("off_reference") for record in entry.records) else ""
    return f"{entry.mean():.2f} ±{(high - low) / 2:.2f}{mark}{off}"


def footnotes(table: Table) -> list[str]:
    """Why a number is not ranked or is off its reference, one line each."""
    lines = []
    for backbone, found, _, _ in table.rows:
        for task, entry in sorted(found.items()):
            lines += [f"{backbone} {task}: {reason}" for reason in entry.reasons]
            lines += [
                f"{backbone} {task}: {record['delta']:+.2f} from the reference {record['reference']['score']:.2f}"
                for record in entry.records
                if record.get("off_reference")
            ]
    return lines


def _markdown(table: Table) -> str:
    heading, *rows = cells(table)
    line = lambda values: f"| {' | '.join(value.replace('|', '-') for value in values)} |"  # noqa: E731
    body = [f"### {table.protocol}", "", line(heading), f"|{'---|' * len(heading)}", *map(line, rows)]
    return "\n".join([*body, *(f"\n{note}" for note in footnotes(table)), ""])


def show(results_dir: Path, tasks: Iterable[str] = ()) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False)
    board = entries(results.read_all(results_dir), tasks)
    if not board:
        raise UsageError(f"no results in {results_dir}; `bench run` makes them, --results DIR says where they are")
    for table in tables(board):
        heading, *rows = cells(table)
        drawn = RichTable(title=table.protocol, title_justify="left", title_style="bold")
        for number, name in enumerate(heading):
            drawn.add_column(name, justify="left" if number == 1 else "right", no_wrap=True)
        for row in rows:
            drawn.add_row(*row)
        console.print(drawn)
        for note in footnotes(table):
            console.print(f"[dim]{note}[/dim]")


def write(results_dir: Path, format: str, out: Path | None, tasks: Iterable[str] = (), *, wide: bool = False) -> None:
    text = export(results_dir, format, tasks, wide=wide)
    if out:
        files.write_text(out, text)
    else:
        print(text, end="")
