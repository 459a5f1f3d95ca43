"""The base of everything a person writes by hand: unknown keys are errors, names follow one rule."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# A name is part of a file path and of a column heading: no separators, no spaces, no leading dot or dash.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=100)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what every random generator takes
Count = Annotated[int, Field(ge=1, le=10**7)]  # of anything a run goes through: more would not end
Positive = Annotated[float, Field(gt=0)]


class Written(BaseModel):
    """What a person writes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Spec(Written):
    """One entry of the registry. `name` is the entry's key."""

    name: Name
    title: str
    aliases: list[Name] = Field(default_factory=list)
