"""ImagesetSpec: where the images and labels of one set come from and how they are split."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ringbench.spec import Name, Seed, Spec

Fraction = Annotated[float, Field(gt=0, lt=1)]


class SplitRule(BaseModel):
    """How the splits a set does not bring are cut: stratified by class; whole groups stay together where groups are known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    val: Fraction = 0.2  # of the training images, for choosing hyper-parameters
    test: Fraction = 0.2  # of all images, only where the set has no test split of its own
    seed: Seed = 0  # of the cut; a run's seed never moves it


class Part(BaseModel):
    """Images with boxes, as one file lists them; paths are below the root."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    annotations: str  # COCO: the JSON file. VOC: the list of images, such as VOC2007/ImageSets/Main/trainval.txt
    images: str | None = None  # COCO: folder of the images, default the root. VOC has them in JPEGImages beside ImageSets


def _different(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("different names")
    return names


class KeypointSpec(BaseModel):
    """What the keypoints of an object are, in the order of the annotations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: Annotated[list[str], Field(min_length=1)]
    flip_pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list
    )  # names that a mirror exchanges
    sigmas: list[Annotated[float, Field(gt=0, strict=False)]]  # of each: how far annotators disagree, in units of sqrt(area)

    @model_validator(mode="after")
    def _fit(self) -> "KeypointSpec":
        if len(set(self.names)) < len(self.names) or len(self.sigmas) != len(self.names):
            raise ValueError(f"one sigma for each of {len(self.names)} different names")
        paired = [name for pair in self.flip_pairs for name in pair]
        if len(set(paired)) < len(paired) or not set(paired) <= set(self.names):
            raise ValueError("flip_pairs of two different names each, every name at most once")
        return self


class ImagesetSpec(Spec):
    """One image set. `provider` names a file in imagesets/providers."""

    provider: Name
    dataset: str | None = None  # the provider's own name of the set, e.g. torchvision's class
    root: str | None = None  # folder below BENCH_DATA (default: the name) or an absolute path
    manifest: str | None = None  # CSV file below the root, for the manifest provider
    classes: Annotated[int, Field(ge=1)] | None = None  # expected number; a different one stops the run
    metric: Literal["top1", "mean_per_class"] = "top1"
    geometry: str | None = None  # replaces the geometric steps of a backbone's pipeline, e.g. `resize(64,bilinear)`
    splits: SplitRule = SplitRule()
    train: list[Part] = Field(default_factory=list)  # of the coco and voc providers, as are the next three
    test: list[Part] = Field(default_factory=list)
    # Which classes count, in this order; default: those the training annotations name.
    class_names: Annotated[list[str], Field(min_length=1), AfterValidator(_different)] | None = None
    keypoints: KeypointSpec | None = None
    source: str | None = None  # where a person gets the files
