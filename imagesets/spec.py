"""ImagesetSpec: where the images and labels of one set come from and how they are split."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ringbench.spec import Name, Seed, Spec

Fraction = Annotated[float, Field(gt=0, lt=1)]


class SplitRule(BaseModel):
    """How the splits a set does not bring are cut: stratified by class; whole groups stay together where groups are known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    val: Fraction = 0.2  # of the training images, for choosing hyper-parameters
    test: Fraction = 0.2  # of all images, only where the set has no test split of its own
    seed: Seed = 0  # of the cut; a run's seed never moves it


class ImagesetSpec(Spec):
    """One image set. `provider` names a file in imagesets/providers."""

    provider: Name
    dataset: str | None = None  # the provider's own name of the set, e.g. torchvision's class
    root: str | None = None  # folder below BENCH_DATA (default: the name) or an absolute path
    manifest: str | None = None  # CSV file below the root, for the manifest provider
    classes: Annotated[int, Field(ge=2)] | None = None  # expected number; a different one stops the run
    metric: Literal["top1", "mean_per_class"] = "top1"
    geometry: str | None = None  # replaces the geometric steps of a backbone's pipeline, e.g. `resize(64,bilinear)`
    splits: SplitRule = SplitRule()
    source: str | None = None  # where a person gets the files
