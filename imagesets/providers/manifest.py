"""Images listed in a CSV file: a header `path,label[,split][,group]`, then one image a row.

Paths are relative to the set's root. Labels are class names (numbers sort as numbers). `split` is train, val or test; `group`
keeps images together (a track, a patient) where splits are cut. A column is filled in every row or left out.
"""

from __future__ import annotations

import csv
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from imagesets.providers.source import Source, absent, class_order
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError, Unavailable, UsageError

NEEDED = ("path", "label")
OPTIONAL = ("split", "group")
SPLITS = ("train", "val", "test")


def missing(spec: ImagesetSpec, root: Path) -> str | None:
    path = _manifest(spec, root)
    return None if path.is_file() else absent(spec, path)


def load(spec: ImagesetSpec, root: Path) -> Source:
    """Raises RingbenchError with the line of whatever is wrong; Unavailable for an image that is not there."""
    path = _manifest(spec, root)
    line_of: dict[str, int] = {}
    split_of: dict[str, str] = {}
    rows: list[dict[str, str]] = []
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        key = row["path"] = posixpath.normpath(row["path"])
        if os.path.isabs(key):  # noqa: PTH117
            raise RingbenchError(f"{where}: '{key}' is an absolute path; write it relative to {root}, so that the set can move")
        if key in line_of:
            raise RingbenchError(f"{where}: '{key}' is listed already in line {line_of[key]}; every image belongs in one row")
        line_of[key] = line
        if row.get("split", "train") not in SPLITS:
            raise RingbenchError(f"{where}: unknown split '{row['split']}'; splits are {', '.join(SPLITS)}")
        if "split" in row and "group" in row and split_of.setdefault(row["group"], row["split"]) != row["split"]:
            raise RingbenchError(
                f"{where}: group '{row['group']}' is in {row['split']} here and in {split_of[row['group']]} above"
            )
        if not os.path.isfile(root / key):  # noqa: PTH113 - `Path.is_file` is several times slower
            raise Unavailable(f"{where}: {root / key} is not there; put it there or remove the line")
        rows.append(row)
    if not rows:
        raise Unavailable(f"{path} lists no images; expected a row for each below its header")
    column = {name: [row[name] for row in rows] for name in rows[0]}
    classes = class_order(set(column["label"]))
    index = {name: i for i, name in enumerate(classes)}
    labels = [index[name] for name in column["label"]]
    return Source(classes, column["path"], labels, column.get("split"), column.get("group"), root=root)


def _manifest(spec: ImagesetSpec, root: Path) -> Path:
    if spec.manifest is None:
        raise UsageError(f"image set '{spec.name}' needs `manifest`, the CSV file below {root} that lists its images")
    return root / spec.manifest


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, {column: value}); blank lines are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = _header(path, next(reader, []))
            for cells in reader:
                values = [cell.strip() for cell in cells]
                if not any(values):
                    continue
                if len(values) != len(header) or not all(values):
                    expected = ",".join(header)
                    raise RingbenchError(
                        f"{path}, line {reader.line_num}: found '{','.join(cells)}'; expected a value for each of {expected}"
                    )
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise RingbenchError(f"{path}, line {reader.line_num}: not readable as CSV ({error})") from None
    except UnicodeDecodeError as error:
        raise RingbenchError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None


def _header(path: Path, cells: list[str]) -> list[str]:
    header = [cell.strip() for cell in cells]
    allowed = {*NEEDED, *OPTIONAL}
    if not set(NEEDED) <= set(header) <= allowed or len(set(header)) < len(header):
        raise RingbenchError(
            f"{path}, line 1: found the header '{','.join(cells)}'; expected path,label and, if you like, split and group"
        )
    return header
