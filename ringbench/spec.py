"""The base of everything a person writes by hand: unknown keys are errors, names follow one rule."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# A name is part of a file path and of a column heading: no separators, no spaces, no leading dot or dash.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=100)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what every random generator takes


class Spec(BaseModel):
    """One entry of the registry. `name` is the entry's key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    title: str
    aliases: list[Name] = Field(default_factory=list)
