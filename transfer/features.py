"""Each image goes through the trunk once: features on disk, memory-mapped, keyed by everything they depend on.

A level of one split is two files: `<level>.bin`, the raw rows, and `<level>.json`, written last, which says the file is
whole. While a pass runs the rows are in `<level>.bin.part` and `progress.json` says how many count; a pass that was
killed goes on from there.
"""

import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from backbones.trunk import FrozenBackbone
from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from ringbench import files
from ringbench.errors import RingbenchError, UsageError

PREFETCHED_BATCHES = 3
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Features:
    """One level of one split: `array` (n, d...) memory-mapped, row i belonging to image `indices[i]` of the set."""

    array: np.ndarray
    indices: np.ndarray
    skipped: list[str]  # keys of the images that could not be read
    cached: bool


def cache_key(backbone_sha256: str, pipeline: Pipeline, image_set: ImageSet, indices: np.ndarray, dtype: torch.dtype) -> str:
    """sha256 of all that the features of some images of a set depend on; the level is the file's name."""
    chosen = files.digest(indices.tolist())
    return files.digest([backbone_sha256, str(pipeline), image_set.fingerprint, chosen, str(dtype)])


def is_cached(
    backbone_sha256: str,
    pipeline: Pipeline,
    image_set: ImageSet,
    indices: np.ndarray,
    level: str,
    dtype: torch.dtype,
    cache: Path,
) -> bool:
    """Whether `extract` would find these features in `cache`."""
    key = cache_key(backbone_sha256, pipeline, image_set, indices, dtype)
    return (_folder(cache, image_set, key) / f"{level}.json").exists()


def extract(
    backbone: FrozenBackbone,
    pipeline: Pipeline,
    image_set: ImageSet,
    indices: np.ndarray,
    levels: Sequence[str],
    cache: Path,
    *,
    batch_size: int = 64,
    on_bad_image: str = "stop",
    progress: Progress | None = None,
) -> dict[str, Features]:
    """Features of `image_set[indices]` at `levels`, from `cache` or computed into it in one pass over the images.

    `pipeline` is resolved (its numbers known) and its tensor steps are those of `backbone`. Memory use does not grow with
    the number of images. Raises BadImage on an unreadable image unless `on_bad_image` is "skip", UsageError if the
    pipeline leaves images of different sizes, RingbenchError if the disk is too small.
    """
    key = cache_key(backbone.certificate["trunk_sha256"], pipeline, image_set, indices, backbone.dtype)
    folder = _folder(cache, image_set, key)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # two runs that want the same features: one computes, the other finds them
        absent = [level for level in dict.fromkeys(levels) if not (folder / f"{level}.json").exists()]
        if absent == ["pooled"] and (folder / "prepool.json").exists():
            _pool(folder)
        elif absent:
            _run(backbone, pipeline, image_set, indices, absent, folder, batch_size, on_bad_image, progress)
        return {level: _open(folder, level, image_set, indices, level not in absent, on_bad_image) for level in levels}


def _folder(cache: Path, image_set: ImageSet, key: str) -> Path:
    return cache / image_set.spec.name / key[:16]


def _run(backbone, pipeline, image_set, indices, levels, folder, batch_size, on_bad_image, progress) -> None:
    writer = _Writer(folder, levels, len(indices))
    batches = _batches(pipeline, image_set, indices[writer.seen :], batch_size, on_bad_image)
    with contextlib.closing(writer):
        for images, seen, skipped in batches:
            rows = backbone(images, levels) if len(images) else {}
            writer.append({level: _to_numpy(rows[level]) for level in rows}, seen, skipped)
            if progress:
                progress(writer.seen, len(indices))
    writer.finish()


def _batches(pipeline, image_set, indices, batch_size, on_bad_image) -> Iterator[tuple[torch.Tensor, int, list[str]]]:
    """Yield (uint8 NCHW images, how many were read, keys of the skipped); the next batches are decoded meanwhile."""

    def read(index: int) -> np.ndarray | BadImage:
        try:
            return pipeline.prepare(image_set.read(index))
        except BadImage as error:
            if on_bad_image == "stop":
                raise
            return error

    def collate(part: np.ndarray, futures: list) -> tuple[torch.Tensor, int, list[str]]:
        results = [future.result() for future in futures]
        images = [result for result in results if isinstance(result, np.ndarray)]
        skipped = [image_set.keys[i] for i, result in zip(part, results, strict=True) if not isinstance(result, np.ndarray)]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise UsageError(
                f"pipeline {pipeline} leaves images of different sizes ({min(shapes)}, {max(shapes)}); add resize or center_crop"
            )
        stacked = np.stack(images) if images else np.empty((0, 1, 1, 3), np.uint8)
        return torch.from_numpy(stacked).permute(0, 3, 1, 2), len(part), skipped  # NHWC memory: already channels-last

    parts = [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="decode")
    try:
        waiting: deque = deque()
        for part in parts:
            waiting.append((part, [pool.submit(read, index) for index in part]))
            if len(waiting) > PREFETCHED_BATCHES:
                yield collate(*waiting.popleft())
        while waiting:
            yield collate(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Writer:
    """Appends rows of several levels in step; what `progress.json` counts is on disk."""

    def __init__(self, folder: Path, levels: Sequence[str], total: int) -> None:
        self.folder, self.levels, self.total = folder, list(levels), total
        self.state_path = folder / "progress.json"
        state = self._resumable() or {"levels": self.levels, "seen": 0, "rows": 0, "skipped": [], "layouts": {}}
        self.seen, self.rows, self.skipped, self.layouts = (state[k] for k in ("seen", "rows", "skipped", "layouts"))
        self.files = {level: self._part(level).open("r+b" if self.rows else "wb") for level in self.levels}
        for level, file in self.files.items():
            if self.rows:
                file.truncate(self.rows * self.layouts[level]["row_bytes"])
                file.seek(0, os.SEEK_END)
        self.unsynced = 0

    def append(self, rows: dict[str, np.ndarray], seen: int, skipped: list[str]) -> None:
        for level, array in rows.items():
            if level not in self.layouts:
                self.layouts[level] = {"shape": array.shape[1:], "dtype": str(array.dtype), "row_bytes": array[0].nbytes}
                self._check_disk(level)
            self.unsynced += self.files[level].write(array.data)
        self.rows += len(next(iter(rows.values()))) if rows else 0
        self.seen += seen
        self.skipped += skipped
        if self.unsynced > 256 << 20:  # the most work a kill can cost
            self._commit()

    def close(self) -> None:
        """Whatever stopped the pass, what was written counts when it is taken up again."""
        if self.files:
            self._commit()
            for file in self.files.values():
                file.close()

    def finish(self) -> None:
        if self.rows == 0:
            raise RingbenchError(
                f"none of the {self.total} images could be read, first {self.skipped[0]}; is this the right folder?"
            )
        for level in self.levels:
            self._part(level).replace(self.folder / f"{level}.bin")
            files.write_json(self.folder / f"{level}.json", {"rows": self.rows, "skipped": self.skipped, **self.layouts[level]})
        self.state_path.unlink()

    def _commit(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        state = {"levels": self.levels, "seen": self.seen, "rows": self.rows, "skipped": self.skipped, "layouts": self.layouts}
        files.write_json(self.state_path, state)
        self.unsynced = 0

    def _resumable(self) -> dict | None:
        """The state of an interrupted pass over the same levels whose rows are all there."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads(self.state_path.read_text())
            rows, layouts = state["rows"], state["layouts"]
            whole = all(self._part(level).stat().st_size >= rows * layouts[level]["row_bytes"] for level in layouts)
            return state if state["levels"] == self.levels and whole else None
        return None

    def _check_disk(self, level: str) -> None:
        needed, free = self.total * self.layouts[level]["row_bytes"], shutil.disk_usage(self.folder).free
        if needed > free:
            raise RingbenchError(
                f"{level} features of {self.total} images take {needed / 1e9:.1f} GB and {self.folder} has "
                f"{free / 1e9:.1f} GB left; make room, or set BENCH_HOME to a larger disk"
            )

    def _part(self, level: str) -> Path:
        return self.folder / f"{level}.bin.part"


def _open(folder: Path, level: str, image_set: ImageSet, indices: np.ndarray, cached: bool, on_bad_image: str) -> Features:
    side = json.loads((folder / f"{level}.json").read_text())
    if side["skipped"] and on_bad_image == "stop":
        raise BadImage(
            f"{side['skipped'][0]} could not be read when these features were made; repair it or use --on-bad-image skip"
        )
    array = np.memmap(folder / f"{level}.bin", side["dtype"], "r", shape=(side["rows"], *side["shape"]))
    bad = set(side["skipped"])
    kept = np.array([i for i in indices if image_set.keys[i] not in bad], dtype=np.int64) if bad else indices
    return Features(array, kept, side["skipped"], cached)


def _pool(folder: Path, chunk: int = 256) -> None:
    """The pooled level is the spatial mean of the prepool level already on disk: no image is read again."""
    side = json.loads((folder / "prepool.json").read_text())
    prepool = np.memmap(folder / "prepool.bin", side["dtype"], "r", shape=(side["rows"], *side["shape"]))
    with files.atomic_path(folder / "pooled.bin") as temporary, temporary.open("wb") as file:
        for start in range(0, len(prepool), chunk):
            rows = torch.from_numpy(np.array(prepool[start : start + chunk])).float().mean(dim=(2, 3))
            file.write(rows.numpy().astype(prepool.dtype).data)
    row_bytes = side["shape"][0] * prepool.dtype.itemsize
    files.write_json(folder / "pooled.json", side | {"shape": side["shape"][:1], "row_bytes": row_bytes})


def _to_numpy(rows: torch.Tensor) -> np.ndarray:
    """Rows as they go to disk: the number type that computed them, but for bfloat16, which numpy has not, float32."""
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows
    return rows.cpu().contiguous().numpy()
