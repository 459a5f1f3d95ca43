"""The leaderboard: a pure function of the result files. The same files give the same tables, wherever and whenever.

One table for each protocol, so that numbers of different protocols never share a column. Seeds are averaged. A backbone is
ranked by its mean over all tasks of the table, and only if every one of them is there and sound; otherwise its mean is blank.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean, stdev

from bench import results
from bench.results import Record
from ringbench.errors import UsageError

NORMAL_95 = 1.96  # half the width of a 95% interval of a normal distribution, in standard deviations


@dataclass(frozen=True)
class Score:
    """A metric in percent: the mean over seeds with its 95% interval, and the standard deviation of single seeds, which is None
    where there is one, or where nothing that was measured depends on the seed."""

    value: float
    ci_low: float
    ci_high: float
    n: int
    seed_std: float | None


@dataclass(frozen=True)
class Entry:
    """One backbone on one task under one protocol, its seeds together; `records` are those with a number, by seed."""

    backbone: str
    task: str
    protocol: str
    records: tuple[Record, ...]
    status: str
    reasons: tuple[str, ...]

    def score(self, metric: str | None = None) -> Score | None:
        """The headline metric, or another one; None where no seed has a number.

        One seed has its bootstrap interval. The interval of several adds what the seeds differ by to what the test images leave
        open: the variance of a mean of n seeds to the mean bootstrap variance, which seeds that share their images do not reduce.
        """
        found = [record["metrics"][metric or record["metric"]] for record in self.records]
        if not found:
            return None
        value, low, high = (fmean(score[key] for score in found) for key in ("value", "ci_low", "ci_high"))
        if len(found) == 1:
            return Score(value, low, high, found[0]["n"], None)
        spread = stdev(score["value"] for score in found)
        half = math.hypot((high - low) / 2, NORMAL_95 * spread / math.sqrt(len(found)))
        return Score(value, max(0.0, value - half), min(100.0, value + half), found[0]["n"], spread or None)

    @property
    def reference(self) -> dict | None:
        return self.records[-1]["reference"] if self.records else None

    def delta(self) -> tuple[float | None, bool]:
        """Distance of the mean over seeds from the published score, and whether it is too large to be chance."""
        if self.reference is None:
            return None, False
        score = self.score(self.reference["metric"])
        return results.reference_delta({"value": score.value, "ci_low": score.ci_low, "ci_high": score.ci_high}, self.reference)


@dataclass(frozen=True)
class Table:
    """All entries of one protocol: `rows` are (backbone, {task: entry}, mean or None, sound tasks), best first."""

    protocol: str
    tasks: list[str]
    rows: list[tuple[str, dict[str, Entry], float | None, int]]


def entries(records: Iterable[Record], tasks: Iterable[str] = ()) -> list[Entry]:
    """Group records into entries, judged anew against all the others (a control may have come later than what it judges).

    Raises UsageError for task patterns that no result matches.
    """
    records, patterns = list(records), list(tasks)
    columns, seeds = defaultdict(list), defaultdict(dict)
    for record in records:
        columns[record["task"], record["protocol"]].append(record)
        if not patterns or any(fnmatchcase(record["task"], pattern) for pattern in patterns):
            cell = seeds[record["backbone"], record["task"], record["protocol"]]
            if record["status"] != "failed" or record["seed"] not in cell:  # a failure gives way to a number of the same seed
                cell[record["seed"]] = record
    if patterns and not seeds:
        known = sorted({record["task"] for record in records})
        raise UsageError(f"no result for task {', '.join(patterns)}; there are results for {', '.join(known) or 'none'}")
    usual = {column: _usual(members) for column, members in columns.items()}
    return [
        _entry(cell, [found[seed] for seed in sorted(found)], columns[cell[1:]], usual[cell[1:]])
        for cell, found in sorted(seeds.items())
    ]


def tables(board: Iterable[Entry]) -> list[Table]:
    by_protocol = defaultdict(list)
    for entry in board:
        by_protocol[entry.protocol].append(entry)
    return [_table(protocol, by_protocol[protocol]) for protocol in sorted(by_protocol)]


def _entry(cell: tuple[str, str, str], group: list[Record], column: list[Record], usual: tuple | None) -> Entry:
    measured = [record for record in group if record["status"] != "failed"]
    statuses, reasons = [], []
    for record in group:
        status, why = results.judge(record, column)
        if status != "failed" and _measured_on(record) != usual:
            status, why = "suspect", [*why, "measured on other images, splits or settings than others in the column"]
        statuses.append(status)
        reasons += why if status != "failed" else [f"seed {record['seed']} failed: {reason}" for reason in why]
    for part, told in (("weights", "weights"), ("backbone", "preprocessing or architectures"), ("dtype", "number types")):
        random = part == "weights" and any(record["certificate"]["source"] == "random" for record in measured)
        if not random and len({record["inputs"][part] for record in measured}) > 1:
            statuses.append("suspect")
            reasons.append(f"the seeds were measured with different {told}")
    worst = next(status for status in ("failed", "suspect", "ok") if status in statuses)
    return Entry(*cell, tuple(measured), worst, tuple(dict.fromkeys(reasons)))


def _measured_on(record: Record) -> tuple:
    """What two numbers must share to stand in one column."""
    test_images = record["metrics"][record["metric"]]["n"]
    return *(record["inputs"][part] for part in ("images", "protocol")), record["metric"], test_images


def _usual(column: list[Record]) -> tuple | None:
    """What most backbones of a column were measured on; None, so that nothing is ranked, where two are equally frequent."""
    kinds = {(record["backbone"], _measured_on(record)) for record in column if record["status"] != "failed"}
    ranked = Counter(kind for _, kind in kinds).most_common(2)
    tied = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    return ranked[0][0] if ranked and not tied else None


def _table(protocol: str, board: list[Entry]) -> Table:
    tasks = sorted({entry.task for entry in board})
    by_backbone = defaultdict(dict)
    for entry in board:
        by_backbone[entry.backbone][entry.task] = entry
    rows = []
    for backbone, found in by_backbone.items():
        sound = [entry.score().value for entry in found.values() if entry.status == "ok"]
        rows.append((backbone, found, fmean(sound) if len(sound) == len(tasks) else None, len(sound)))
    rows.sort(key=lambda row: (row[2] is None, -(row[2] or 0.0), -row[3], row[0]))
    return Table(protocol, tasks, rows)
