"""Rows of features on disk, appended in step for several levels, resumable, whole or absent.

A level is two files: `<level>.bin`, the raw rows, and `<level>.json`, written last, which says the file is whole. While rows
are being written they are in `<level>.bin.part`, and `progress.json` says how many of them count.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringbench import files
from ringbench.errors import RingbenchError

UNSYNCED = 256 << 20  # bytes: the most work a kill can cost


class Writer:
    """Appends rows of several levels in step; what `progress.json` counts is on disk."""

    def __init__(self, folder: Path, levels: Sequence[str], total: int, made: dict[str, str]) -> None:
        self.folder, self.levels, self.total, self.made = folder, list(levels), total, made
        self.state_path = folder / "progress.json"
        state = self._resumable() or {"seen": 0, "rows": 0, "skipped": [], "layouts": {}}
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
        if self.unsynced > UNSYNCED:
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
            side = {"rows": self.rows, "skipped": self.skipped, "made": self.made, **self.layouts[level]}
            files.write_json(self.folder / f"{level}.json", side)
        self.state_path.unlink()

    def _commit(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        state = {"levels": self.levels, "made": self.made, "seen": self.seen, "rows": self.rows}
        state |= {"skipped": self.skipped, "layouts": self.layouts}
        files.write_json(self.state_path, state)
        self.unsynced = 0

    def _resumable(self) -> dict | None:
        """The state of an interrupted pass over the same levels on a like machine, whose rows are all there."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads(self.state_path.read_text())
            rows, layouts = state["rows"], state["layouts"]
            whole = all(self._part(level).stat().st_size >= rows * layouts[level]["row_bytes"] for level in layouts)
            return state if whole and (state["levels"], state["made"]) == (self.levels, self.made) else None
        return None

    def _check_disk(self, level: str) -> None:
        needed = (self.total - self.rows) * self.layouts[level]["row_bytes"]
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise RingbenchError(
                f"{level} features of {self.total} images take {needed / 1e9:.1f} GB and {self.folder} has "
                f"{free / 1e9:.1f} GB left; make room, or set BENCH_HOME to a larger disk"
            )

    def _part(self, level: str) -> Path:
        return self.folder / f"{level}.bin.part"


def whole(folder: Path, level: str) -> dict | None:
    """The sidecar of a level whose file has every row it promises; None, and the level is made anew, where it has not."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        side = json.loads((folder / f"{level}.json").read_text())
        if (folder / f"{level}.bin").stat().st_size == side["rows"] * side["row_bytes"]:
            return side
    return None


def rows_of(folder: Path, level: str, side: dict) -> np.ndarray:
    """(rows, *shape), memory-mapped."""
    return np.memmap(folder / f"{level}.bin", side["dtype"], "r", shape=(side["rows"], *side["shape"]))
