"""BackboneSpec: everything needed to turn a checkpoint into one and the same frozen extractor, wherever it is used."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ringbench.spec import Name, Spec

Arch = Literal["resnet18", "resnet50"]
Stem = Literal["imagenet", "cifar"]


class ReferenceScore(BaseModel):
    """A published number that a run of this backbone on one task should reproduce, in percent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: str
    score: float
    std: float | None = None
    source: str


class BackboneSpec(Spec):
    """One encoder.

    `source` says where the weights come from:
      `random`         initialised by `seed`, or by the run's seed where `seed` is left out
      `recipe:NAME`    written by `bench pretrain NAME`
      a URL            downloaded only when asked for, to BENCH_HOME/checkpoints
      a path           of a local file, relative to the registry file that names it
    """

    arch: Arch
    stem: Stem = "imagenet"
    source: str
    seed: int | None = None
    format: str = "auto"
    checkpoint_key: str | None = None
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")] | None = None  # the digest or its first digits
    pipeline: str
    pretraining: str = "unknown"
    reference: dict[Name, ReferenceScore] = Field(default_factory=dict)
