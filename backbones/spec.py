"""BackboneSpec: everything needed to turn a checkpoint into one and the same frozen extractor, wherever it is used."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from ringbench.spec import Name, Seed, Spec, Written

# x2 and x0.5 scale the channels of every layer, wide_ only the 3x3 convolutions inside the bottlenecks.
Arch = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnet50x2",
    "resnet18x0.5",
    "resnet50x0.5",
]
Stem = Literal[
    "imagenet", "same_pool", "same", "cifar", "cifar_pad2", "cifar_s2", "lab", "ydbdr"
]  # what each is: backbones/stems.py


class ReferenceScore(Written):
    """A published number that a run of this backbone on one task should reproduce, in percent."""

    metric: str
    score: float
    std: float | None = None
    source: str


class PublishedScore(Written):
    """A number somebody reported, in percent, by a protocol that is not ours: to be shown, not to be compared with."""

    metric: str
    score: float
    std: float | None = None
    source: str | None = None  # where it is not the entry's origin


class BackboneSpec(Spec):
    """One encoder.

    `source` says where the weights come from:
      `random`         initialised by `seed`, or by the run's seed where `seed` is left out
      `recipe:NAME`    written by `bench pretrain NAME`
      a URL, or hf:OWNER/NAME[/FILE] for a file of the Hugging Face hub (default: model.safetensors)
                       downloaded only when asked for, to BENCH_HOME/checkpoints
      a path           of a local file, relative to the registry file that names it
    """

    arch: Arch
    stem: Stem = "imagenet"
    source: str
    seed: Seed | None = None
    format: str = "auto"
    checkpoint_key: str | None = None
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")] | None = None  # the digest or its first digits
    pipeline: str
    pretraining: str = "unknown"
    licence: str | None = None  # of the weights
    origin: str | None = None  # repository and file in which the address stands
    published: list[PublishedScore] = Field(default_factory=list)
    reference: dict[Name, ReferenceScore] = Field(default_factory=dict)
