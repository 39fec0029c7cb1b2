"""Reads a scenario file into the model, reporting every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentload.scenario.document import Document, Fault, ScenarioError, read_document
from agentload.scenario.model import Scenario

_SHOWN_CHARS = 80
_ABSENT = object()
_PROBLEMS = {  # pydantic's words where they tell of Python instead of YAML
    "missing": "missing",
    "extra_forbidden": "unknown key",
    "model_type": "a mapping of keys is needed",
    "model_attributes_type": "a mapping of keys is needed",
    "dict_type": "a mapping of keys is needed",
    "tuple_type": "a list is needed",
    "union_tag_not_found": "a mapping with the key 'dist' is needed",
}


def load(path: Path, overrides: Mapping[str, object] = MappingProxyType({})) -> Scenario:
    """The scenario in a YAML file, with `overrides` (dotted key -> value) put in its place.

    Raises ScenarioError with all faults: what the file system says, YAML that does not parse, a
    key given twice, unknown keys, values out of range.
    """
    document = read_document(path)
    _place_trace(document, path.parent)
    for key, value in overrides.items():
        _put(document, key, value)
    _place_trace(document, Path())
    faults = document.faults
    try:
        scenario = Scenario.model_validate(document.content)
    except ValidationError as error:
        faults += [_fault(detail, document) for detail in error.errors(include_url=False)]
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
    except (yaml.YAMLError, ValueError):
        raise ValueError(f"{_shown(value)} is not a YAML value (for {key})") from None


def _put(document: Document, key: str, value: object) -> None:
    *parents, last = key.split(".")
    at: Any = document.content
    for parent in parents:
        at = at.setdefault(parent, {}) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at[last] = value
    else:
        document.faults.append(Fault(key, _shown(value), "an override needs a mapping to stand in"))


def _place_trace(document: Document, folder: Path) -> None:
    """The file of a trace stands relative to the scenario file, in an override to where we are.

    It is made absolute, so that it is the same in every process of a run.
    """
    trace = document.content.get("trace")
    if isinstance(trace, dict) and isinstance(trace.get("file"), str) and trace["file"]:
        trace["file"] = str((folder / trace["file"]).absolute())


def _fault(detail: ErrorDetails, document: Document) -> Fault:
    """The error at its place in the file: pydantic's path also has the names of union members."""
    at: object = document.content
    path: list[str] = []
    for step in detail["loc"]:
        inside = _step(at, step)
        if inside is not _ABSENT:
            at = inside
            path.append(str(step))
        elif detail["type"] == "missing" and step == detail["loc"][-1]:
            path.append(str(step))
    parents = [".".join(path[:n]) for n in range(len(path), 0, -1)]
    line = next((document.lines[key] for key in parents if key in document.lines), None)
    value = None if detail["type"] == "missing" else _shown(detail["input"])
    problem = _PROBLEMS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return Fault(".".join(path), value, problem, line)


def _step(at: object, step: int | str) -> object:
    if isinstance(at, dict):
        return at.get(step, _ABSENT)
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return at[step]
    return _ABSENT


def _shown(value: object) -> str:
    """The value, shortened; a whole section would hide the fault."""
    if isinstance(value, dict | list | tuple):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
