"""The leaderboard to look at and to take away: in the terminal, as CSV, Markdown and JSON."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import results
from bench.leaderboard import Entry, Table, entries, tables
from bench.page import page
from bench.page import table as blank
from ringbench import files
from ringbench.errors import UsageError

SCHEMA = 1  # of the columns below
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
SHARED = ("imageset", "selected_on", "level", "pipeline", "trunk_sha256", "certificate_sha256", "fingerprint", "split_hash")


def show(results_dir: Path, tasks: Iterable[str] = ()) -> None:
    """Print a table for each protocol. One that is wider than the terminal goes on below itself."""
    board = entries(results.read_all(results_dir), tasks)
    if not board:
        raise UsageError(f"no results in {results_dir}; `bench run` makes them, --results DIR says where they are")
    with page() as out:
        for table in tables(board):
            rows = _cells(table)
            for columns in _that_fit(rows, out.width):
                drawn = blank(table.protocol)
                for column in columns:
                    drawn.add_column(rows[0][column], justify="left" if column == 1 else "right", no_wrap=True)
                for row in rows[1:]:
                    drawn.add_row(*(row[column] for column in columns))
                out.print(drawn)
            notes = _footnotes(table)
            for note in notes:
                out.print(note, style="dim")
            if notes:
                out.print()
        out.print("Percent, ± half a 95% interval. Not ranked: ? suspect, ! failed. * is off its reference.", style="dim")


def export(results_dir: Path, format: str, tasks: Iterable[str] = (), *, wide: bool = False) -> str:
    """The leaderboard as csv, md or json. A row is a backbone x task x metric; with `wide`, in csv, a protocol x backbone.

    Raises UsageError for another format, or `wide` with one that has no such form.
    """
    if wide and format != "csv":
        raise UsageError(f"--wide is a form of CSV and not of {format}; leave one of them out")
    board = entries(results.read_all(results_dir), tasks)
    if format == "md":
        return "\n".join(_markdown(table) for table in tables(board))
    if format == "json":
        return json.dumps(_long_rows(board), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if format == "csv":
        return _csv(_wide_rows(tables(board)) if wide else [LONG_COLUMNS, *(list(row.values()) for row in _long_rows(board))])
    raise UsageError(f"unknown format {format!r}; expected csv, md or json")


def write(results_dir: Path, format: str, out: Path | None, tasks: Iterable[str] = (), *, wide: bool = False) -> None:
    text = export(results_dir, format, tasks, wide=wide)
    if out:
        files.write_text(out, text)
    else:
        print(text, end="")


def _long_rows(board: list[Entry]) -> list[dict[str, Any]]:
    rows = []
    for entry in board:
        row = dict.fromkeys(LONG_COLUMNS) | {"schema": SCHEMA, "seeds": len(entry.records)}
        row |= {"backbone": entry.backbone, "task": entry.task, "protocol": entry.protocol}
        row |= {"status": entry.status, "reasons": "; ".join(entry.reasons)}
        if not entry.records:
            rows.append(row)
            continue
        row |= {name: _common(entry, name) for name in (*SHARED, "dtype", "device")}
        row["grid_edge"] = any(record["grid_edge"] for record in entry.records)
        if entry.records[0]["converged"] is not None:
            row["converged"] = all(record["converged"] for record in entry.records)
        for metric in sorted(entry.records[0]["metrics"]):
            score, values = entry.score(metric), {"metric": metric}
            values |= {"value": score.value, "ci_low": score.ci_low, "ci_high": score.ci_high}
            values |= {"n_test": score.n, "seed_std": score.seed_std}
            if entry.reference and entry.reference["metric"] == metric:
                delta, off = entry.delta()
                values |= {"reference": entry.reference["score"], "delta": delta, "off_reference": off}
            rows.append(row | values)
    return rows


def _common(entry: Entry, name: str) -> str:
    """What all seeds share, or all there is: random weights are others with every seed."""
    return " ".join(dict.fromkeys(str(record[name]) for record in entry.records if record[name] is not None))


def _wide_rows(boards: list[Table]) -> list[list]:
    """One row for each protocol x backbone; a task that a protocol has not is blank there."""
    tasks = sorted({task for table in boards for task in table.tasks})
    rows = [["schema", "protocol", "rank", "backbone", "mean", "tasks_done", "tasks", *tasks]]
    for table in boards:
        for rank, (backbone, found, mean, done) in enumerate(table.rows, 1):
            scores = [found[task].score().value if task in found and found[task].status == "ok" else None for task in tasks]
            ranked = rank if mean is not None else None
            rows.append([SCHEMA, table.protocol, ranked, backbone, mean, done, len(table.tasks), *scores])
    return rows


def _csv(rows: Iterable[Iterable]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return text.getvalue()


def _cells(table: Table) -> list[list[str]]:
    """The table as text, heading first: rank, backbone, mean, how many of the tasks are there and sound, and each task."""
    rows = [["", "backbone", "mean", "tasks", *table.tasks]]
    for rank, (backbone, found, mean, done) in enumerate(table.rows, 1):
        scores = [_score(found.get(task)) for task in table.tasks]
        overall = "" if mean is None else f"{mean:.2f}"
        rows.append([str(rank) if overall else "-", backbone, overall, f"{done}/{len(table.tasks)}", *scores])
    return rows


def _score(entry: Entry | None) -> str:
    if entry is None:
        return ""
    score = entry.score()
    if score is None:
        return "failed"
    mark = {"ok": "", "suspect": " ?", "failed": " !"}[entry.status]
    return f"{score.value:.2f} ±{(score.ci_high - score.ci_low) / 2:.2f}{mark}{' *' if entry.delta()[1] else ''}"


def _footnotes(table: Table) -> list[str]:
    """Why a number is not ranked or is off its reference, one line each."""
    lines = []
    for backbone, found, _, _ in table.rows:
        for task, entry in sorted(found.items()):
            lines += [f"{backbone} {task}: {reason}" for reason in entry.reasons]
            delta, off = entry.delta()
            if off:
                lines.append(f"{backbone} {task}: {delta:+.2f} from the reference {entry.reference['score']:.2f}")
    return lines


def _markdown(table: Table) -> str:
    heading, *rows = [f"| {' | '.join(row)} |" for row in _cells(table)]
    rule = f"|{'---|' * (len(table.tasks) + 4)}"
    return "\n".join([f"### {table.protocol}", "", heading, rule, *rows, *(f"\n{note}" for note in _footnotes(table)), ""])


def _that_fit(rows: list[list[str]], width: int) -> list[list[int]]:
    """The columns in groups as wide as the terminal, each after the first beginning with rank and backbone again."""
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]  # with what the table puts between columns
    groups, repeated = [[0, 1]], [0, 1]
    for column in range(2, len(widths)):
        if len(groups[-1]) > len(repeated) and sum(widths[c] for c in [*groups[-1], column]) > width - 2:
            groups.append([*repeated])
        groups[-1].append(column)
    return groups
