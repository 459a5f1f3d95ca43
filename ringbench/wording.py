"""Words for sentences about what was not understood: unknown words and the nearest known ones, pydantic's findings."""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ringbench.yaml_lines import UNREADABLE

TYPES = {  # pydantic's kinds of error
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
}
MOST = 20  # findings about one entry that a person is told
NAME_RULE = "letters, digits and _ . @ + - only, beginning with a letter, a digit or _"
SHA256_RULE = "8 to 64 hexadecimal digits in lower case"


def nearest(word: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown word: the known words that look like it, or all of them where they are few."""
    if near := get_close_matches(word, known, n=2):
        return "; did you mean " + " or ".join(f'"{name}"' for name in near) + "?"
    return f"; expected {', '.join(known)}" if 0 < len(known) <= 16 else ""


def found(value: Any) -> str:
    """What a person wrote, as part of a sentence."""
    match value:
        case None:
            return "empty"
        case str():
            return f'"{value[:60]}"'
        case bool():
            return f"the word {str(value).lower()}"
        case int() | float():
            return f"the number {str(value)[:60]}"
    return "a list" if isinstance(value, list) else "keys with values"


def sentences(error: ValidationError, model: type[BaseModel], label: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """pydantic's findings about the entry `label` as (keys that lead to the place, sentence); of very many the first."""
    all_findings = [finding for finding in error.errors(include_url=False) if finding["input"] is not UNREADABLE]
    findings = all_findings[:MOST]
    misspelt = [str(finding["loc"][-1]) for finding in findings if finding["type"] == "extra_forbidden"]
    lacking = [".".join(map(str, finding["loc"])) for finding in findings if finding["type"] == "missing"]
    lacking = [place for place in lacking if not get_close_matches(place.rpartition(".")[2], misspelt)]  # one mistake, not two
    if lacking:
        yield (), f"{label} lacks the key{'s' if lacking[1:] else ''} {', '.join(lacking)}"
    for finding in findings:
        keys, kind = tuple(part for part in finding["loc"] if part != "[key]"), finding["type"]
        last, place = str(keys[-1]), ".".join(map(str, keys))
        if keys == ("name",):
            versioned = " and, as a protocol's, ends in @ and a version: knn@1" if "@[0-9]+" in str(finding.get("ctx")) else ""
            yield keys, f"{label}: a name has {NAME_RULE}{versioned}"
        elif kind == "extra_forbidden":
            inside = f'"{".".join(map(str, keys[:-1]))}" of {label}' if keys[1:] else label
            yield keys, f'unknown key "{last[:60]}" in {inside}{nearest(last, _known_keys(model, keys[:-1]))}'
        elif kind != "missing":
            yield keys, f'"{place}" of {label} is {found(finding["input"])}; expected {_expected(finding)}'
    if all_findings[MOST:]:
        yield (), f"{label} has {len(all_findings) - MOST} more such mistakes"


def _expected(finding: Any) -> str:
    kind = finding["type"]
    if kind == "literal_error":
        known = re.findall(r"'(.*?)'", finding["ctx"]["expected"])
        near = get_close_matches(str(finding["input"]), known, n=1)
        return " or ".join(known) + (f'; did you mean "{near[0]}"?' if near else "")
    if kind == "string_pattern_mismatch":
        return SHA256_RULE if finding["loc"][0] == "sha256" else NAME_RULE
    return TYPES.get(kind) or finding["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def _known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    for part in path:
        if field := model.model_fields.get(str(part)):
            model = next(_models(field.annotation))
    return [key for key in model.model_fields if key != "name"]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type such as `list[Part] | None` speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
