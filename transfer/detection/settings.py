"""What a protocol of the probe `detection` may say, and an encoder's pixels in Detectron2's words. Needs no Detectron2."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagesets.pipeline import Pipeline
from ringbench.errors import UsageError
from ringbench.wording import nearest, sentences

CONFIGS = Path(__file__).with_name("configs")


class Settings(BaseModel):
    """What a protocol of the probe `detection` says."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    config: str  # a file of transfer/detection/configs
    freeze: Literal["encoder", "trunk", "none"] = "encoder"
    iterations: Annotated[int, Field(ge=1)] | None = None  # a schedule shortened to so many


def settings(values: dict[str, Any]) -> Settings:
    """Raises UsageError for an unknown or a wrong setting."""
    try:
        chosen = Settings.model_validate(values)
    except ValidationError as error:
        raise UsageError(next(sentences(error, Settings, "the protocol"))[1]) from None
    known = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if chosen.config not in known:
        raise UsageError(f"no configuration {chosen.config!r} in {CONFIGS}{nearest(chosen.config, known)}")
    return chosen


def detector_inputs(pipeline: Pipeline) -> dict[str, str | list[float]]:
    """A pipeline in Detectron2's words: order of the channels, mean and std of pixels in 0..255 in that order (CASES C13).

    Raises UsageError for normalize(dataset), whose numbers a detector would not know.
    """
    if pipeline.needs_statistics:
        raise UsageError(
            f"'{pipeline}' takes its numbers from each image set, a detector needs fixed ones; say them with --pipeline"
        )
    scale = 255 if pipeline.scale01 else 1
    mean, std = ([round(scale * x, 6) for x in triple] for triple in (pipeline.mean or (0.0,) * 3, pipeline.std or (1.0,) * 3))
    return {"INPUT.FORMAT": pipeline.colour.upper(), "MODEL.PIXEL_MEAN": mean, "MODEL.PIXEL_STD": std}
