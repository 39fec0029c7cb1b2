"""Faults of an experiment file in its own words: line, key, what is wrong, what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from agentload.experiment.plan import (
    Arm,
    CommandTarget,
    EmbeddedTarget,
    Experiment,
    KubernetesTarget,
    UrlTarget,
)
from agentload.scenario.document import Document

TARGETS: dict[str, type[BaseModel]] = {
    "embedded": EmbeddedTarget,
    "command": CommandTarget,
    "url": UrlTarget,
    "kubernetes": KubernetesTarget,
}
FLAG_KINDS = {"bool", "int", "float", "str"}
WORDS = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "union_tag_invalid": f"has to be one of {', '.join(TARGETS)}",
    "union_tag_not_found": f"kind is missing; it is one of {', '.join(TARGETS)}",
    "finite_number": "has to be a finite number",
    "dict_type": "has to be a mapping of keys",
    "model_type": "has to be a mapping of keys",
    "list_type": "has to be a list",
    "too_short": "needs an entry",
    "string_type": "has to be text; put it in quotes",
    "int_type": "has to be a whole number",
    "float_type": "has to be a number",
    "bool_type": "has to be true or false",
    "string_pattern_mismatch": "has to be lower case letters, digits and hyphens",
}


def told(error: ValidationError, document: Document) -> list[str]:
    """One line a fault, a flag's kinds as one; values that could be secret are not shown."""
    lines: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        raw = tuple(fault["loc"])
        where = tuple(_in_the_file(raw))
        key = ".".join(map(str, where))
        of_flag = "flags" in map(str, where[:-1]) and str(raw[-1]) in FLAG_KINDS
        problem = _problem(fault, of_flag=of_flag)
        hint = _allowed(raw) if fault["type"] == "extra_forbidden" else ""
        lines.setdefault(key, f"{_line(document, key)}{key}: {problem}{hint}")
    return list(lines.values())


def _in_the_file(location: tuple[Any, ...]) -> Iterator[Any]:
    """The path without what the checking adds: the target's kind, the kinds of a flag's value."""
    for i, part in enumerate(location):
        is_kind = i == 1 and location[0] == "target" and part in TARGETS
        is_union = i == len(location) - 1 and i > 1 and part in FLAG_KINDS
        if not is_kind and not is_union and part != "[key]":
            yield part


def _problem(fault: Mapping[str, Any], *, of_flag: bool) -> str:
    if of_flag:
        return "a flag is true, false, a finite number or text"
    if fault["type"] == "union_tag_invalid":
        return f"{WORDS['union_tag_invalid']}, is {fault['ctx']['tag']!r}"
    given = fault["input"]  # a whole mapping may hold what is not to be shown
    unshown = isinstance(given, dict | list) or fault["type"] in ("extra_forbidden", "missing")
    seen = "" if unshown else f", is {given!r}"
    return f"{WORDS.get(fault['type'], fault['msg'])}{seen}"


def _allowed(location: tuple[Any, ...]) -> str:
    """The keys that could stand where an unknown one does."""
    model: type[BaseModel] | None = Experiment if len(location) == 1 else None
    if location[0] == "target" and len(location) == 3:
        model = TARGETS.get(str(location[1]))
    if location[0] == "arms" and len(location) == 3:
        model = Arm
    return "" if model is None else f"; allowed here: {', '.join(sorted(model.model_fields))}"


def _line(document: Document, key: str) -> str:
    """The line of the key, or of the nearest one around it."""
    while key:
        if key in document.lines:
            return f"line {document.lines[key]}: "
        key = key.rpartition(".")[0]
    return ""
