"""YAML as `yaml.safe_load` reads it, with the line of every key, and stricter where a slip would pass unseen."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ringbench.errors import UsageError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEPTH = 20  # a registry needs five levels
LARGEST = 1_000_000  # bytes; people write these files by hand
TAG = "tag:yaml.org,2002:"
JSON = {TAG + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
UNREADABLE = ...  # stands where a value has a problem, so that one slip is reported once


@dataclass
class Document:
    """`value` holds dicts with text keys, lists, and JSON's scalars; `lines` the 1-based line of each path of keys in it."""

    value: Any = None
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)


def content(path: Path, kind: str) -> str:
    """The text of a file that a person wrote. Raises UsageError if there is none; `kind` is what it should be."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            os.set_blocking(file.fileno(), True)
            data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise UsageError(f"{path} has {path.stat().st_size} bytes, a {kind} at most {LARGEST}; is it the right file?")
    except (OSError, ValueError) as error:  # a ValueError: a name with a NUL in it
        raise UsageError(f"the {kind} {path} cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def read(text: str) -> Document:
    """Read one document. Never raises: what is wrong stands in `problems` as (line, sentence)."""
    document = Document()
    try:
        loader = LOADER(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        document.problems.append(_syntax(error, text))
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        document.problems.append((line, "a control character that YAML does not allow; remove it"))
    except RecursionError:
        document.problems.append((1, "nested too deeply to be read"))
    else:
        if node is not None:
            document.value = _Walk(loader, document).value(node, ())
    return document


def _at_once(name: str, flags: int) -> int:
    """Open without waiting for somebody to write into a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


class _Walk:
    """Turns nodes into values. Reading the nodes ourselves keeps the lines and lets us see what the loader would swallow."""

    def __init__(self, loader: Any, document: Document) -> None:
        self.loader, self.document = loader, document
        self.seen: set[int] = set()

    def value(self, node: yaml.Node, path: tuple[str | int, ...]) -> Any:
        line = self.document.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag not in JSON:
            return self.problem(line, f'a YAML "{node.tag.removeprefix(TAG)}" is not read here; write it as text, in quotes')
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, line)
        if id(node) in self.seen:  # an alias; refused because nested ones grow a few lines into gigabytes
            return self.problem(line, "a list or a group of keys is used a second time through *; write it out")
        if len(path) > DEPTH:
            return self.problem(line, f"nested more than {DEPTH} levels deep")
        self.seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.mapping(node, path)

    def mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == TAG + "merge":
                self.problem(line, "the merge key << is not read here; write the keys out")
            elif key_node.tag != TAG + "str":
                written = f"the key {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else "a key"
                self.problem(line, f"{written} is not text; put it in quotes")
            elif (key := key_node.value) in found:
                self.problem(line, f'the key "{key}" is written twice, first in line {self.document.lines[(*path, key)]}')
            else:
                self.document.lines[(*path, key)] = line
                found[key] = self.value(value_node, (*path, key))
        return found

    def scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (ValueError, LookupError, yaml.YAMLError):  # a tag that does not fit; more digits than Python makes a number of
            return self.problem(line, f'"{node.value[:60]}" cannot be read as "{node.tag.removeprefix(TAG)}"')
        if isinstance(value, float) and not math.isfinite(value):
            return self.problem(line, f"{node.value} is not a finite number")
        return value

    def problem(self, line: int, sentence: str) -> Any:
        self.document.problems.append((line, sentence))
        return UNREADABLE


def _syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    line = error.problem_mark.line if error.problem_mark else 0
    content = text.splitlines()[line : line + 1]
    if content and "\t" in content[0][: len(content[0]) - len(content[0].lstrip())]:
        return line + 1, "a tab in the indentation; YAML indents with spaces"
    began = error.context_mark.line if error.context_mark else line
    context = f"{error.context} begun in line {began + 1}" if began != line else error.context
    return line + 1, "not valid YAML: " + ", ".join(filter(None, (context, error.problem)))
