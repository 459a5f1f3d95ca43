"""What a run tells: a line of JSON for each record, a line for a person each epoch, and TensorBoard's files where it is there."""

import importlib.util
import json
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from ringbench import files


class Log:
    """Records below `folder`: `log.jsonl`, and `tensorboard/` where that package is installed.

    Records after `step` belong to what a resumed run does again, and are dropped.
    """

    def __init__(self, folder: Path, step: int, say: Callable[[str], None] = print) -> None:
        self.path, self.say = folder / "log.jsonl", say
        kept = [line for line in self._lines() if _step(line) <= step]
        files.write_text(self.path, "".join(f"{line}\n" for line in kept))
        self.board = None
        if importlib.util.find_spec("tensorboard") and str(folder).isprintable():  # it fails where the name is no text
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def _lines(self) -> list[str]:
        """Whole lines: a killed run may have left half of one."""
        if not self.path.exists():
            return []
        return self.path.read_text(errors="replace").split("\n")[:-1]

    def write(self, step: int, **values: float) -> None:
        with files.naming(self.path), self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self.board:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def epoch(self, number: int, of: int, values: dict[str, float], seconds_left: float) -> None:
        knn = f"  kNN {100 * values['knn']:5.2f}%" if "knn" in values else ""
        self.say(
            f"epoch {number}/{of}  loss {values['epoch_loss']:.4f}{knn}  {values['images_per_s']:.0f} images/s"
            f"  stalled {100 * values['stalled']:.0f}%  left {timedelta(seconds=round(seconds_left))}"
        )

    def close(self) -> None:
        if self.board:
            self.board.close()


def _step(line: str) -> float:
    """Of a record; what is none, as a machine without power leaves behind, is of no step."""
    try:
        return json.loads(line)["step"] + 0
    except (ValueError, TypeError, LookupError):
        return math.inf


class Silent(Log):
    """What ranks other than the first tell."""

    def __init__(self) -> None:
        self.board = None

    def write(self, step: int, **values: float) -> None:
        pass

    def epoch(self, number: int, of: int, values: dict[str, float], seconds_left: float) -> None:
        pass
