"""A YAML file as a mapping, with the line of every key."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a scenario file. `key` is a dotted path, empty for the whole file."""

    key: str
    value: str | None
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        what = f"{self.key}: " if self.key else ""
        found = f" (found {self.value})" if self.value is not None else ""
        return " ".join(f"{place}{what}{self.problem}{found}".split())


class ScenarioError(ValueError):
    """A scenario cannot be used; holds every fault found."""

    def __init__(self, path: Path, faults: list[Fault]) -> None:
        self.path = path
        self.faults = tuple(faults)
        lines = "".join(f"\n  {fault}" for fault in faults)
        noun = "fault" if len(faults) == 1 else "faults"
        super().__init__(f"{path}: {len(faults)} {noun}{lines}")


@dataclass(slots=True)
class Document:
    """What the file says. `lines` holds the line of each dotted key; `faults` what is no key."""

    content: dict[str, Any]
    lines: dict[str, int]
    faults: list[Fault]


def read_document(path: Path) -> Document:
    """The mapping in a YAML file; ScenarioError when there is none. Repeated keys are faults."""
    try:
        node, content = _compose(_text(path))
    except _UnusableError as error:
        raise ScenarioError(path, [Fault("", error.value, str(error), error.line)]) from None
    document = Document(content, {}, [])
    _note_keys(node, "", document)
    return document


class _UnusableError(Exception):
    def __init__(self, problem: str, *, value: str | None = None, line: int | None = None) -> None:
        super().__init__(problem)
        self.value = value
        self.line = line


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _UnusableError(error.strerror or str(error)) from None
    if len(raw) > MAX_BYTES:
        raise _UnusableError(f"at most {MAX_BYTES} bytes are allowed", value=f"{len(raw)} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _UnusableError(f"not UTF-8 at byte {error.start}") from None


class _Loader(yaml.SafeLoader):
    """Refuses aliases: nothing in a scenario needs them, and they can blow a small file up."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _UnusableError(
                "aliases (*name) are not allowed in a scenario", line=self.line + 1
            )
        return super().compose_node(parent, index)


def _compose(text: str) -> tuple[yaml.MappingNode, dict[str, Any]]:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            kind = "nothing" if node is None else node.tag.rpartition(":")[2]
            raise _UnusableError("the file has to hold a mapping of keys", value=kind)
        return node, loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise _UnusableError(
            f"not valid YAML: {error.problem or error.context}", line=line
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = str(error)[:200] or type(error).__name__
        raise _UnusableError(f"not valid YAML: {said}") from None


def _note_keys(node: yaml.Node, at: str, document: Document) -> None:
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            document.lines[f"{at}.{i}"] = item.start_mark.line + 1
            _note_keys(item, f"{at}.{i}", document)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[Hashable] = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            document.faults.append(Fault(at, None, "a key has to be text", line))
            continue
        key = f"{at}.{key_node.value}" if at else key_node.value
        if key_node.value in seen:
            first = document.lines[key]
            document.faults.append(Fault(key, None, f"given again (first at line {first})", line))
            continue
        seen.add(key_node.value)
        document.lines[key] = line
        _note_keys(value_node, key, document)
