"""The result store: one JSON file for each (backbone, task, protocol, seed). Nothing else is state.

RESULTS/<backbone>/<task>/<protocol>.seed<N>.json           a measured number and everything it depends on
RESULTS/<backbone>/<task>/<protocol>.seed<N>.failed.json    why there is none; gone once a run succeeds
"""

import contextlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringbench import files
from ringbench.errors import RingbenchError

SCHEMA = 1
REQUIRED = dict.fromkeys(("schema", "backbone", "task", "protocol", "seed", "status", "metric"), object) | {"metrics": dict}
MEASURED = dict.fromkeys(("converged", "fingerprint", "reference", "split_hash", "trunk_sha256"), object)
MEASURED |= dict.fromkeys(("certificate", "chance", "inputs", "n_skipped"), dict)
INPUTS = {"weights", "backbone", "protocol", "images", "dtype"}
Record = dict[str, Any]


def path_of(results: Path, backbone: str, task: str, protocol: str, seed: int, *, failed: bool = False) -> Path:
    return results / backbone / task / f"{protocol}.seed{seed}{'.failed' if failed else ''}.json"


def run_folder(results: Path, backbone: str, imageset: str, protocol: str, seed: int) -> Path:
    """Where a detector's log, checkpoints and predictions are: its run is told by several tasks, so it goes by the image set."""
    return results / backbone / imageset / f"{protocol}.seed{seed}"


def _place(record: Record) -> Path:
    """Where below the results a record belongs, told from its content."""
    cell = (str(record[part]) for part in ("backbone", "task", "protocol", "seed"))
    return path_of(Path(), *cell, failed=record["status"] == "failed")


def write(results: Path, record: Record) -> Path:
    """Write a record to its place, atomically. A success takes the place of an earlier failure."""
    path, failure = results / _place(record), results / _place(record | {"status": "failed"})
    files.write_json(path, {"schema": SCHEMA, **record})
    if path != failure:
        failure.unlink(missing_ok=True)
    return path


def read(path: Path) -> Record:
    """Raises RingbenchError if the file is no result of a schema this version knows, or that of another cell."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RingbenchError(f"{path} is not a readable result ({error}); move it away and run the cell again") from None
    if fault := _fault(record):
        raise RingbenchError(f"{path} is not a whole result: {fault}; move it away")
    if record["schema"] != SCHEMA:
        raise RingbenchError(f"{path} has result schema {record['schema']}, this version reads {SCHEMA}; update ringbench")
    if path.parts[-3:] != _place(record).parts:
        raise RingbenchError(f"{path} is a copy or was renamed: its content belongs in {_place(record)}; move it away")
    return record


def _fault(record: Any) -> str | None:
    """The first thing by which it is no whole result."""
    record = record if isinstance(record, dict) else {}
    measured = record.get("status") != "failed"
    kinds = REQUIRED | MEASURED if measured else REQUIRED
    if lacking := kinds.keys() - record.keys():
        return f"it lacks {', '.join(sorted(lacking))}"
    if wrong := [key for key, kind in kinds.items() if not isinstance(record[key], kind)]:
        return f"its {wrong[0]} cannot be"
    if measured and record["metric"] not in record["metrics"]:
        return f"its metric {record['metric']!r} cannot be"
    if measured and (lacking := INPUTS - record["inputs"].keys()):
        return f"it lacks {', '.join(sorted(lacking))}"
    for name, score in record["metrics"].items():
        for key in ("value", "ci_low", "ci_high", "n"):
            if not isinstance(score, dict) or type(score.get(key)) not in (int, float) or not math.isfinite(score[key]):
                return f"{name}.{key} of its metrics is no number"
    return None


def read_all(results: Path) -> list[Record]:
    """Every record below `results`, in the order of their names, whatever the file system's order."""
    return [read(path) for path in sorted(results.glob("*/*/*.seed*.json")) if not path.name.startswith(".")]


def read_column(results: Path, task: str, protocol: str) -> list[Record]:
    """The records of one task and protocol, whatever the backbone. A file that is no result is passed over: see `read_all`."""
    found = []
    for path in sorted(results.glob(f"*/{task}/{protocol}.seed*.json")):
        with contextlib.suppress(RingbenchError):
            found.append(read(path))
    return found


def judge(record: Record, others: Iterable[Record]) -> tuple[str, list[str]]:
    """(status, reasons): `suspect` where the number says more about a fault than about the encoder, so that it is not ranked.

    Suspect is a probe that did not converge, a test split that was not read whole, a score whose interval reaches down to chance,
    and a score no better than that of a random-initialised network of the same architecture on the same images (CASES C3, P3).
    `others` are searched for that control.
    """
    if record["status"] == "failed":
        return "failed", record["reasons"]
    score, reasons = record["metrics"][record["metric"]], []
    if record["converged"] is False:
        reasons.append("the probe did not converge")
    if record["n_skipped"]["test"]:
        reasons.append(f"{record['n_skipped']['test']} test images could not be read")
    if score["ci_low"] <= record["chance"][record["metric"]]:
        reasons.append(f"at chance ({record['chance'][record['metric']]:.1f})")
    for control in others:
        if is_control_of(control, record):
            bounds = control["metrics"][record["metric"]]
            if score["value"] <= bounds["ci_high"]:
                low, high = bounds["ci_low"], bounds["ci_high"]
                reasons.append(f"no better than {control['backbone']} seed {control['seed']} ({low:.1f} to {high:.1f})")
    return ("suspect" if reasons else "ok"), reasons


def same_measurement(one: Record, other: Record) -> bool:
    """Whether two numbers differ in nothing but the encoder: in the images, in all that the protocol means, in the precision."""
    alike = all(one[key] == other[key] for key in ("task", "protocol", "fingerprint", "split_hash"))
    return alike and all(one["inputs"][key] == other["inputs"][key] for key in ("protocol", "dtype"))


def is_control_of(control: Record, record: Record) -> bool:
    return (
        control["status"] != "failed"
        and control["certificate"]["source"] == "random" != record["certificate"]["source"]
        and all(control["certificate"][key] == record["certificate"][key] for key in ("arch", "stem"))
        and same_measurement(control, record)
    )


def reference_delta(score: dict[str, float], reference: dict | None) -> tuple[float | None, bool]:
    """(score minus the published score in points, whether the interval and published mean +- 2 std do not overlap; CASES C4)."""
    if not reference:
        return None, False
    spread = 2 * (reference["std"] or 0.0)
    apart = score["ci_low"] > reference["score"] + spread or score["ci_high"] < reference["score"] - spread
    return score["value"] - reference["score"], apart
