"""Reads a scenario file into the model, reporting every fault at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentload.scenario.model import Scenario

MAX_BYTES = 1 << 20
SHOWN_CHARS = 80


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
        return f"{place}{what}{self.problem}{found}"


class ScenarioError(ValueError):
    """A scenario cannot be used; holds every fault found."""

    def __init__(self, path: Path, faults: list[Fault]) -> None:
        self.path = path
        self.faults = tuple(faults)
        lines = "".join(f"\n  {fault}" for fault in faults)
        noun = "fault" if len(faults) == 1 else "faults"
        super().__init__(f"{path}: {len(faults)} {noun}{lines}")


def load(path: Path, overrides: Mapping[str, object] = MappingProxyType({})) -> Scenario:
    """The scenario in a YAML file, with `overrides` (dotted key -> value) put in its place.

    Raises ScenarioError with all faults: what the file system says, YAML that does not parse, a
    key given twice, unknown keys, values out of range.
    """
    text = _read(path)
    document, lines, faults = _parse(path, text)
    for key, value in overrides.items():
        _put(document, key, value, faults)
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        faults += [_fault(detail, document, lines) for detail in error.errors(include_url=False)]
        raise ScenarioError(path, faults) from None
    if faults:
        raise ScenarioError(path, faults)
    return scenario


def parse_override(text: str) -> tuple[str, object]:
    """`key.path=value`, the value as YAML has it; ValueError for anything else."""
    key, equals, value = text.partition("=")
    if not equals or not all(part for part in key.split(".")):
        raise ValueError(f"{_shown(text)} is not of the form key.path=value")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"{_shown(value)} is not a YAML value (for {key})") from None


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ScenarioError(path, [Fault("", None, error.strerror or str(error))]) from None
    if len(raw) > MAX_BYTES:
        raise ScenarioError(path, [Fault("", f"{len(raw)} bytes", f"at most {MAX_BYTES} bytes")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(path, [Fault("", None, f"not UTF-8 at byte {error.start}")]) from None


class _Refused(yaml.YAMLError):
    """Valid YAML that a scenario may not use."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """Notes where each key stands, and each key that stands twice.

    Anchors are refused: nothing in a scenario needs them, and they can blow a small file up.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _Refused(self.line + 1, "aliases (*name) are not allowed in a scenario")
        return super().compose_node(parent, index)


def _parse(path: Path, text: str) -> tuple[dict[str, Any], dict[str, int], list[Fault]]:
    loader = _Loader(text)
    lines: dict[str, int] = {}
    faults: list[Fault] = []
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            kind = "nothing" if node is None else node.tag.rpartition(":")[2]
            raise ScenarioError(path, [Fault("", kind, "the file has to hold a mapping of keys")])
        _note_keys(node, "", lines, faults)
        document = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        problem = f"not valid YAML: {error.problem or error.context}"
        raise ScenarioError(path, [Fault("", None, problem, line)]) from None
    except _Refused as error:
        raise ScenarioError(path, [Fault("", None, str(error), error.line)]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"not valid YAML: {str(error)[:200] or type(error).__name__}"
        raise ScenarioError(path, [Fault("", None, problem)]) from None
    finally:
        loader.dispose()
    return document, lines, faults


def _note_keys(node: yaml.Node, at: str, lines: dict[str, int], faults: list[Fault]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[f"{at}.{i}"] = item.start_mark.line + 1
            _note_keys(item, f"{at}.{i}", lines, faults)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[Hashable] = set()
    for key_node, value_node in node.value:
        key = f"{at}.{key_node.value}" if at else str(key_node.value)
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            faults.append(Fault(key[:SHOWN_CHARS], None, "a key has to be text", line))
        elif key_node.value in seen:
            faults.append(Fault(key, None, f"given again (first at line {lines[key]})", line))
            continue
        else:
            seen.add(key_node.value)
        lines[key] = line
        _note_keys(value_node, key, lines, faults)


def _put(document: dict[str, Any], key: str, value: object, faults: list[Fault]) -> None:
    *parents, last = key.split(".")
    at: Any = document
    for parent in parents:
        at = at.setdefault(parent, {}) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        faults.append(Fault(key, _shown(value), "an override needs a mapping to stand in"))
    else:
        at[last] = value


def _fault(detail: ErrorDetails, document: object, lines: dict[str, int]) -> Fault:
    """The error with the path as it stands in the file: pydantic adds names of union members."""
    at, path = document, []
    for step in detail["loc"]:
        inside = _step(at, step)
        if inside is _ABSENT:
            if detail["type"] in ("missing", "extra_forbidden") and step == detail["loc"][-1]:
                path.append(str(step))
            continue
        at = inside
        path.append(str(step))
    key = ".".join(path)
    line = next((lines[k] for k in _ancestors(key) if k in lines), None)
    value = None if detail["type"] == "missing" else _shown(detail["input"])
    return Fault(key, value, _problem(detail), line)


_ABSENT = object()


def _step(at: object, step: int | str) -> object:
    if isinstance(at, dict):
        return at.get(step, _ABSENT)
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return at[step]
    return _ABSENT


def _ancestors(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _problem(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "missing"
    if detail["type"] == "extra_forbidden":
        return "unknown key"
    return detail["msg"].removeprefix("Value error, ")


def _shown(value: object) -> str:
    """The value, shortened; a whole section would hide the fault."""
    if isinstance(value, dict | list | tuple):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
