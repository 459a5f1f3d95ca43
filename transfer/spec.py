"""What is measured: a protocol (probe, level, settings) and a task (image set x protocol)."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from ringbench.spec import Name, Spec

Level = Literal["res2", "res3", "res4", "res5", "prepool", "pooled", "stages"]  # stages: res2 .. res5, as a detector uses them
DETECTION = "detection"  # the probe that is a detector: transfer/detection

# What numbers are called: those of a classifier, and COCO's and Pascal VOC's of a detector (transfer/detection/evaluate.py).
ACCURACIES = ("top1", "top5", "mean_per_class")
_AREAS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
_POINTS = ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl")
_VOC = ("AP_voc07", "AP50_voc07", "AP75_voc07")
PRECISIONS = tuple(
    f"{kind}_{name}" for kind, names in (("box", _AREAS + _VOC), ("mask", _AREAS), ("keypoint", _POINTS)) for name in names
)


class ProtocolSpec(Spec):
    """One way of measuring. The name carries a version (`logreg@1`): change a setting, change the version.

    `probe` names a file in transfer/probes, or is `detection`; `settings` are its arguments and are checked by it.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*@[0-9]+$", max_length=100)]
    probe: Name
    level: Level
    settings: dict[str, Any] = Field(default_factory=dict)
    source: str  # the paper or code this follows

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every name that a number of this protocol can have; an image set has not all of them."""
        return PRECISIONS if self.probe == DETECTION else ACCURACIES


class TaskSpec(Spec):
    """One cell of the leaderboard: an image set measured by a protocol."""

    imageset: Name
    protocol: Name
    metric: Name | None = None  # the headline number, in place of the image set's
