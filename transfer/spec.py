"""What is measured: a protocol (probe, level, settings) and a task (image set x protocol)."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from ringbench.spec import Name, Spec

Level = Literal["res2", "res3", "res4", "res5", "prepool", "pooled", "stages"]  # stages: res2 .. res5, as a detector uses them
DETECTION = "detection"  # the probe that is a detector: transfer/detection


class ProtocolSpec(Spec):
    """One way of measuring. The name carries a version (`logreg@1`): change a setting, change the version.

    `probe` names a file in transfer/probes, or is `detection`; `settings` are its arguments and are checked by it.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*@[0-9]+$", max_length=100)]
    probe: Name
    level: Level
    settings: dict[str, Any] = Field(default_factory=dict)
    source: str  # the paper or code this follows


class TaskSpec(Spec):
    """One cell of the leaderboard: an image set measured by a protocol."""

    imageset: Name
    protocol: Name
    metric: Name | None = None  # the headline number, in place of the image set's
