"""Each image goes through the trunk once: features on disk, memory-mapped, keyed by everything they depend on."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import PIL
import torch
from filelock import FileLock

from backbones.trunk import FrozenBackbone
from imagesets.decode import BadImage
from imagesets.image_set import ImageSet
from imagesets.pipeline import Pipeline
from ringbench import files
from ringbench.errors import UsageError
from transfer import store

VERSION = 1  # of the arithmetic in backbones.trunk and of the files here: another one finds no old features
PREFETCHED_BATCHES = 3
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Features:
    """One level of one split: `array` (n, d...) memory-mapped, row i belonging to image `indices[i]` of the set."""

    array: np.ndarray
    indices: np.ndarray
    skipped: list[str]  # keys of the images that could not be read
    made: dict[str, str]  # on which device and with which versions
    cached: bool


def cache_key(backbone_sha256: str, pipeline: Pipeline, image_set: ImageSet, indices: np.ndarray, dtype: torch.dtype) -> str:
    """sha256 of all that the features of some images of a set depend on; the level is the file's name."""
    chosen = files.digest(indices.tolist())
    return files.digest([VERSION, backbone_sha256, str(pipeline), image_set.local_state, chosen, str(dtype)])


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
    folder = _folder(cache, image_set, cache_key(backbone_sha256, pipeline, image_set, indices, dtype))
    return any((folder / f"{name}.json").exists() for name in {level, "prepool" if level == "pooled" else level})


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
    fresh: bool = False,
    progress: Progress | None = None,
) -> dict[str, Features]:
    """Features of `image_set[indices]` at `levels`, from `cache` or computed into it in one pass over the images.

    What is in the cache counts if its checksum does; with `fresh` it never counts.
    `pipeline` is resolved (its numbers known) and its tensor steps are those of `backbone`. Memory use does not grow with
    the number of images. Raises BadImage on an unreadable image unless `on_bad_image` is "skip", UsageError if the
    pipeline leaves images of different sizes, RingbenchError if the disk is too small.
    """
    key = cache_key(backbone.certificate["trunk_sha256"], pipeline, image_set, indices, backbone.dtype)
    folder = _folder(cache, image_set, key)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # two runs that want the same features: one computes, the other finds them
        if fresh:
            store.forget(folder)
        absent = [level for level in dict.fromkeys(levels) if not store.sound(folder, level)]
        if absent == ["pooled"] and store.sound(folder, "prepool"):
            _pool(folder, backbone.dtype)
        elif absent:
            _run(backbone, pipeline, image_set, indices, absent, folder, batch_size, on_bad_image, progress)
        return {level: _open(folder, level, image_set, indices, level not in absent, on_bad_image) for level in levels}


def _folder(cache: Path, image_set: ImageSet, key: str) -> Path:
    return cache / image_set.spec.name / key[:16]


def _run(backbone, pipeline, image_set, indices, levels, folder, batch_size, on_bad_image, progress) -> None:
    writer = store.Writer(folder, levels, len(indices), _made(backbone))
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
    pool = ThreadPoolExecutor(joblib.cpu_count(), thread_name_prefix="decode")
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


def _open(folder: Path, level: str, image_set: ImageSet, indices: np.ndarray, cached: bool, on_bad_image: str) -> Features:
    side = store.whole(folder, level)
    if side["skipped"] and on_bad_image == "stop":
        raise BadImage(
            f"{side['skipped'][0]} could not be read when these features were made; repair it or use --on-bad-image skip"
        )
    bad = set(side["skipped"])
    kept = np.array([i for i in indices if image_set.keys[i] not in bad], dtype=np.int64) if bad else indices
    return Features(store.rows_of(folder, level, side), kept, side["skipped"], side["made"], cached)


def _pool(folder: Path, dtype: torch.dtype, chunk: int = 256) -> None:
    """The pooled level is the spatial mean of the prepool level already on disk: no image is read again."""
    side = store.whole(folder, "prepool")
    prepool = store.rows_of(folder, "prepool", side)
    with files.atomic_path(folder / "pooled.bin") as temporary, temporary.open("wb") as file:
        for start in range(0, len(prepool), chunk):
            rows = torch.from_numpy(np.array(prepool[start : start + chunk])).mean(dim=(2, 3), dtype=torch.float32)
            file.write(_to_numpy(rows.to(dtype)).data)
    layout = {"shape": side["shape"][:1], "row_bytes": side["shape"][0] * prepool.dtype.itemsize}
    files.write_json(folder / "pooled.json", side | layout | {"crc32": store.crc32_file(folder / "pooled.bin")})


def _made(backbone: FrozenBackbone) -> dict[str, str]:
    device = torch.cuda.get_device_name(backbone.device) if backbone.device.type == "cuda" else str(backbone.device)
    return {"device": device, "torch": torch.__version__, "pillow": PIL.__version__}


def _to_numpy(rows: torch.Tensor) -> np.ndarray:
    """Rows as they go to disk: the number type that computed them, but for bfloat16, which numpy has not, float32."""
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows
    return rows.cpu().contiguous().numpy()
