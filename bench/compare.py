"""`bench compare`: two encoders on one task of a detector, by the images that both were tested on."""

import json
from pathlib import Path
from typing import Any

from bench import results
from bench.page import page, table
from bench.registry import Registry
from bench.results import Record
from imagesets import annotated
from imagesets.annotated import AnnotatedSet
from ringbench import files
from ringbench.errors import RingbenchError, Unavailable, UsageError

Difference = dict[str, Any]


def command(
    registry: Registry,
    task: str,
    pair: tuple[str, str],
    *,
    results_dir: Path,
    data: Path,
    protocol: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Print every metric of both, and their difference with its paired interval.

    Raises UsageError for a task of another probe, Unavailable where a number is not there, RingbenchError where the two were not
    measured on the same images.
    """
    spec, names = registry.find("tasks", task), [registry.find("backbones", name).name for name in pair]
    if registry.find("protocols", spec.protocol).probe != "detection":
        raise UsageError(f"{spec.name} keeps no predictions to compare image by image; detection tasks do")
    images = annotated.load(registry.find("imagesets", spec.imageset), data)
    records = [_record(results_dir, name, spec.name, protocol or "*", seed) for name in names]
    first, second = records
    if not results.same_measurement(first, second):
        raise RingbenchError(f"{names[0]} and {names[1]} were not measured alike: on other images, in other batches or precision")
    if images.fingerprint != first["fingerprint"]:
        raise RingbenchError(f"the images of '{images.spec.name}' are not those that {names[0]} and {names[1]} were measured on")
    found = [_predictions(results_dir, record) for record in records]
    rows = _differences(images, records, found)
    if as_json:
        print(json.dumps({"backbones": names, "task": spec.name, "seed": seed, "metrics": rows}, indent=2, sort_keys=True))
    else:
        _show(rows, names, f"{spec.name}, {first['protocol']}, seed {seed}, n {rows[first['metric']]['n']}", first["metric"])


def _record(results_dir: Path, backbone: str, task: str, protocol: str, seed: int) -> Record:
    paths = sorted((results_dir / backbone / task).glob(f"{protocol}.seed{seed}.json"))
    if not paths:
        raise Unavailable(f"{backbone} has no number of {task} with seed {seed} in {results_dir}; `bench run` makes one")
    if len(paths) > 1:
        names = ", ".join(path.name.removesuffix(f".seed{seed}.json") for path in paths)
        raise UsageError(f"{backbone} has numbers of {task} under several protocols; choose with --protocol: {names}")
    return results.read(paths[0])


def _predictions(results_dir: Path, record: Record) -> list[dict]:
    """Those of the run that the record is of, or an error."""
    cell = (str(record.get(part)) for part in ("backbone", "imageset", "protocol", "seed"))
    path = results.run_folder(results_dir, *cell) / "predictions.json"
    if not path.exists():
        raise Unavailable(f"{path} is not here; `bench run --force` makes it again")
    run = record.get("run")
    if not isinstance(run, dict) or files.sha256_file(path) != run.get("predictions_sha256"):
        raise RingbenchError(f"{path} is not what the run wrote that was measured; `bench run --force` makes it again")
    return json.loads(path.read_bytes())


def _differences(images: AnnotatedSet, records: list[Record], predictions: list[list[dict]]) -> dict[str, Difference]:
    """metric -> the two values, and second minus first with its interval."""
    from transfer.detection.evaluate import paired
    from transfer.detection.predictions import WORDS

    split, rows, shared = images.splits["test"], {}, records[0]["metrics"].keys() & records[1]["metrics"].keys()
    for kind, word in WORDS.items():
        if not any(metric.startswith(f"{word}_") for metric in shared):
            continue
        scores = paired(split, split.categories, *predictions, kind, style=images.style, keypoints=images.keypoints)
        for name, score in scores.items():
            metric, difference = f"{word}_{name}", score.pop("value")
            values = [record["metrics"][metric]["value"] for record in records]
            rows[metric] = {"values": values, "difference": difference, **score}
    return rows


def _show(rows: dict[str, Difference], names: list[str], title: str, headline: str) -> None:
    drawn = table(title)
    for column in ("metric", *names, "difference", "95% interval"):
        drawn.add_column(column, justify="left" if column == "metric" else "right", no_wrap=True)
    for metric in sorted(rows, key=lambda metric: metric != headline):
        row = rows[metric]
        apart = row["ci_low"] > 0 or row["ci_high"] < 0
        interval = f"[{row['ci_low']:+.2f}, {row['ci_high']:+.2f}]"
        drawn.add_row(
            metric, *(f"{x:.2f}" for x in row["values"]), f"{row['difference']:+.2f}", interval, style="bold" if apart else ""
        )
    with page() as out:
        out.print(drawn)
        out.print("Percent; both resampled together over the test images. Bold: the interval does not hold 0.", style="dim")
