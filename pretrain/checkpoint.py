"""What a run leaves behind to go on from: whole files, the last few and the best by kNN."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from ringbench import files
from ringbench.errors import RingbenchError

LAST = "step_*.pt"


class Checkpoints:
    """The checkpoints below `folder`: `step_NNNNNNNN.pt`, of which the `keep` last stay, and `best.pt`."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def latest(self) -> Path | None:
        return max(self.folder.glob(LAST), default=None)

    def save(self, state: dict, step: int, best: bool = False) -> Path:
        """Write the state at a step. What a killed run left half-written is swept away; files that are whole stay whole."""
        path = self.folder / f"step_{step:08d}.pt"
        with files.atomic_path(path) as temporary:
            _write(state, temporary)
        if best:
            with files.atomic_path(self.folder / "best.pt") as temporary:
                temporary.write_bytes(path.read_bytes())
        for old in sorted(self.folder.glob(LAST))[: -self.keep]:
            old.unlink()
        for broken in self.folder.glob(".*.tmp"):
            broken.unlink()
        return path

    def read(self, path: Path) -> dict:
        """Raises RingbenchError for a file that is no checkpoint."""
        with taking_up(path):
            return torch.load(path, map_location="cpu", weights_only=True)


@contextlib.contextmanager
def taking_up(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file or what is in it, the sentence is the same."""
    try:
        yield
    except RingbenchError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
        raise RingbenchError(
            f"{path} cannot be read as a checkpoint ({reason}); remove it to go on from an earlier one"
        ) from error


def _write(state: dict, path: Path) -> None:
    """torch reports a full disk, which Python told it of, as a mistake in its own archive."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
