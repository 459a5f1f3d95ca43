"""What becomes of a cell: done, measured, failed or unavailable, and the record that is left of it."""

from backbones import sources
from backbones.device import resolve_dtype
from bench import provenance, results
from bench.plan import Cell, Options
from imagesets.annotated import AnnotatedSet
from imagesets.image_set import ImageSet
from ringbench import files
from ringbench.errors import RingbenchError
from ringbench.stopping import Preempted


def inputs_of(cell: Cell, images: ImageSet | AnnotatedSet, weights: str, protocol: list, options: Options) -> dict[str, str]:
    """What the number depends on, part by part, so that a stale result can be told from a valid one; `protocol` is everything
    that the cell's means."""
    described = {"arch", "stem", "format", "checkpoint_key", "pipeline"}
    return {
        "weights": weights,
        "backbone": files.digest(cell.backbone.model_dump(include=described)),
        "protocol": files.digest(protocol),
        "images": files.digest([images.fingerprint, images.split_hash, cell.imageset.geometry, cell.metric]),
        "dtype": str(resolve_dtype(options.dtype)),
    }


def weights_of(cell: Cell, options: Options) -> str:
    """The sha256 of the file, or the seed of random weights."""
    path = sources.require(cell.backbone, download=options.download)
    seed = cell.seed if cell.backbone.seed is None else cell.backbone.seed
    return files.sha256_file(path) if path else f"random, seed {seed}"


def confirm(cell: Cell, inputs: dict[str, str], options: Options) -> Cell:
    """A result that is already there stands only if what it depends on is still the same."""
    try:
        record = results.read(cell.path)
    except RingbenchError as error:
        cell.state, cell.reason = "failed", str(error)
        return cell
    changed = [part for part, value in inputs.items() if record.get("inputs", {}).get(part) != value]
    skipped = {part for part, n in record["n_skipped"].items() if n}
    if options.on_bad_image == "stop" and skipped - {"train"}:  # which detectors do without whatever was asked for
        changed.append("images, some of them skipped")
    if changed:
        cell.state = "failed"
        cell.reason = f"{cell.path} was measured with other {', '.join(changed)}; --force replaces it, --results DIR keeps both"
    return cell


def finish(
    cell: Cell,
    outcome: dict,
    options: Options,
    *,
    inputs: dict[str, str],
    certificate: dict,
    images: ImageSet | AnnotatedSet,
    pipeline: str,
    skipped: dict[str, int],
    notes: list[str],
    libraries: tuple[str, ...] = (),
    **told,
) -> Cell:
    """Write the record of a cell that was measured: what came out of it and everything it depends on, judged.

    Raises RingbenchError where the headline metric is not among those measured.
    """
    if cell.metric not in outcome["metrics"]:
        known = ", ".join(outcome["metrics"])
        raise RingbenchError(f"task {cell.task.name} is told by {cell.metric}, which was not measured; there are {known}")
    reference = cell.backbone.reference.get(cell.task.name)
    record = {
        **provenance.identity(cell),
        **outcome,
        **told,
        "status": "ok",
        "metric": cell.metric,
        "inputs": inputs,
        "trunk_sha256": certificate["trunk_sha256"],
        "certificate": certificate,
        "certificate_sha256": files.digest(certificate),
        "fingerprint": images.fingerprint,
        "split_hash": images.split_hash,
        "pipeline": pipeline,
        "level": cell.protocol.level,
        "n_skipped": skipped,
        "reference": reference.model_dump() if reference else None,
        "delta": None,
        "off_reference": False,
        "versions": provenance.versions(*libraries),
        "notes": outcome["notes"] + notes + [f"{n} {part} images skipped" for part, n in skipped.items() if n],
    }
    if reference:
        score = record["metrics"][reference.metric]
        record["delta"], record["off_reference"] = results.reference_delta(score, record["reference"])
    column = results.read_column(options.results, cell.task.name, cell.protocol.name)
    record["status"], record["reasons"] = results.judge(record, column)
    if cell.backbone.source != "random" and not any(results.is_control_of(other, record) for other in column):
        record["notes"].append("no random control on these images: `bench run` one of the random backbones beside it")
    results.write(options.results, record)
    return close(cell, "measured", str(cell.path))


def close(cell: Cell, state: str, reason: str) -> Cell:
    """A result that is already there is not undone by data or weights that have gone since."""
    if cell.state != "done":
        cell.state, cell.reason = state, reason
    return cell


def fail(cell: Cell, error: Exception, options: Options) -> Cell:
    """Tell it, and write it down as far as the disk allows, which may be what failed. With --debug the error itself goes on, and
    so does the machine's being asked for back, which is no failure and ends all cells."""
    if options.debug or isinstance(error, Preempted):
        raise error
    failure = provenance.failure(cell, options, error)
    if close(cell, "failed", *failure["reasons"]).state == "failed":
        try:
            results.write(options.results, failure)
        except OSError as full:
            cell.reason += f"; this could not be written down ({full.strerror})"
    return cell
