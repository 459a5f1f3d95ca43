"""Rows of features on disk, appended in step for several levels, resumable, whole or absent.

A level is two files: `<level>.bin`, the raw rows, and `<level>.json`, written last, which says the file is whole and holds its
checksum. While rows are being written they are in `<level>.bin.part`, and `progress.json` says how many of them count.
"""

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.filesize import decimal

from ringbench import files
from ringbench.errors import RingbenchError

UNSYNCED = 256 << 20  # bytes: the most work a kill can cost
BLOCK = 4 << 20  # bytes checked at a time


class Writer:
    """Appends rows of several levels in step; what `progress.json` counts is on disk."""

    def __init__(self, folder: Path, levels: Sequence[str], total: int, made: dict[str, str]) -> None:
        self.folder, self.levels, self.total, self.made = folder, list(levels), total, made
        self.state_path = folder / "progress.json"
        state = self._resumable() or {"seen": 0, "rows": 0, "skipped": [], "layouts": {}, "crc32": dict.fromkeys(self.levels, 0)}
        self.seen, self.rows, self.skipped = state["seen"], state["rows"], state["skipped"]
        self.layouts, self.crc32 = state["layouts"], state["crc32"]
        if self.layouts:
            self._check_disk()
        self.files = {level: self._part(level).open("r+b" if self.rows else "wb") for level in self.levels}
        for level, file in self.files.items():
            if self.rows:
                file.truncate(self.rows * self.layouts[level]["row_bytes"])
                file.seek(0, os.SEEK_END)
        self.unsynced = 0

    def append(self, rows: dict[str, np.ndarray], seen: int, skipped: list[str]) -> None:
        if rows and not self.layouts:
            self.layouts = {level: _layout(array) for level, array in rows.items()}
            self._check_disk()
        crc32 = {}
        for level, array in rows.items():
            with files.naming(self._part(level)):
                self.unsynced += self.files[level].write(array.data)
            crc32[level] = zlib.crc32(array.data, self.crc32[level])
        self.crc32 |= crc32  # with the rows: what stops a write leaves all levels as they were counted
        self.rows += len(next(iter(rows.values()))) if rows else 0
        self.seen += seen
        self.skipped += skipped
        if self.unsynced > UNSYNCED:
            self._commit()

    def close(self) -> None:
        """Whatever stopped the pass, what was written counts when it is taken up again."""
        try:
            self._commit()
        finally:
            for file in self.files.values():
                with contextlib.suppress(OSError):  # told by the commit
                    file.close()

    def finish(self) -> None:
        if self.rows == 0:
            raise RingbenchError(
                f"none of the {self.total} images could be read, first {self.skipped[0]}; is this the right folder?"
            )
        for level in self.levels:
            self._part(level).replace(self.folder / f"{level}.bin")
            side = {
                "rows": self.rows,
                "skipped": self.skipped,
                "made": self.made,
                "crc32": self.crc32[level],
                **self.layouts[level],
            }
            files.write_json(self.folder / f"{level}.json", side)
        self.state_path.unlink()

    def _commit(self) -> None:
        for level, file in self.files.items():
            with files.naming(self._part(level)):
                file.flush()
                os.fsync(file.fileno())
        state = {"levels": self.levels, "made": self.made, "seen": self.seen, "rows": self.rows}
        state |= {"skipped": self.skipped, "layouts": self.layouts, "crc32": self.crc32}
        files.write_json(self.state_path, state)
        self.unsynced = 0

    def _resumable(self) -> dict | None:
        """The state of an interrupted pass over the same levels on a like machine, whose rows are all there."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads(self.state_path.read_text())
            if (state["levels"], state["made"]) == (self.levels, self.made) and all(
                crc32_file(self._part(level), state["rows"] * layout["row_bytes"]) == state["crc32"][level]
                for level, layout in state["layouts"].items()
            ):
                return state
        return None

    def _check_disk(self) -> None:
        needed = (self.total - self.rows) * sum(layout["row_bytes"] for layout in self.layouts.values())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise RingbenchError(
                f"the {' and '.join(self.levels)} features of {self.total} images take {decimal(needed)} and {self.folder} has "
                f"{decimal(free)} left; make room, or set BENCH_HOME to a larger disk"
            )

    def _part(self, level: str) -> Path:
        return self.folder / f"{level}.bin.part"


def _layout(rows: np.ndarray) -> dict:
    return {"shape": rows.shape[1:], "dtype": str(rows.dtype), "row_bytes": rows[0].nbytes}


def whole(folder: Path, level: str) -> dict | None:
    """The sidecar of a level whose file has the size it promises; None, and the level is made anew, where it has not."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        side = json.loads((folder / f"{level}.json").read_text())
        if (folder / f"{level}.bin").stat().st_size == side["rows"] * side["row_bytes"]:
            return side
    return None


def sound(folder: Path, level: str) -> bool:
    """Whether the level is whole and every byte of it is what was written."""
    side = whole(folder, level)
    return side is not None and side.get("crc32") == crc32_file(folder / f"{level}.bin")


def crc32_file(path: Path, size: int | None = None) -> int:
    """Of the first `size` bytes, or of all."""
    crc, left = 0, path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while block := file.read(min(BLOCK, left)):
            crc, left = zlib.crc32(block, crc), left - len(block)
    return crc


def forget(folder: Path) -> None:
    """Remove the levels in a folder and what an interrupted pass left there."""
    for path in (*folder.glob("*.json"), *folder.glob("*.bin"), *folder.glob("*.part")):  # the lock stays
        path.unlink(missing_ok=True)


def rows_of(folder: Path, level: str, side: dict) -> np.ndarray:
    """(rows, *shape), memory-mapped."""
    return np.memmap(folder / f"{level}.bin", side["dtype"], "r", shape=(side["rows"], *side["shape"]))
