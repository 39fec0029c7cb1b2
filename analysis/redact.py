"""Removal of secrets from what was found in input files."""

from __future__ import annotations

import re
from typing import Any

REMOVED = "(removed)"

_SECRET_NAME = re.compile(
    r"(^|[_\-])(api[_\-]?keys?|keys?|authorization|auth|password|passwd|secrets?|token|bearer"
    r"|cookies?|credentials?)$",
    re.IGNORECASE,
)
_SECRET_TEXT = [
    (re.compile(r"\b(sk|hf|ghp|pk|rk)[-_][A-Za-z0-9_\-]{8,}"), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{6,}=*"), rf"\1 {REMOVED}"),
    (re.compile(r"://[^/@\s]+@"), "://"),
    (
        re.compile(r"(?i)((?:--|\b)[a-z_\-]*(?:api[_\-]?key|password|secret)[\"']?[=:\s]+)\S+"),
        rf"\1{REMOVED}",
    ),
]


def text(value: str) -> str:
    """`value` without what looks like a key, a bearer token, or a user in a URL."""
    for pattern, replacement in _SECRET_TEXT:
        value = pattern.sub(replacement, value)
    return value


def tree(value: Any, name: str = "") -> Any:
    """A JSON value without secrets: by the name of the key, by flag in a command, by shape."""
    if isinstance(value, dict):
        return {str(key): tree(item, str(key)) for key, item in value.items()}
    if value is not None and not isinstance(value, bool) and _is_secret(name):
        return REMOVED
    if isinstance(value, list):
        return [tree(item, _flag_before(value, i)) for i, item in enumerate(value)]
    return text(value) if isinstance(value, str) else value


def _flag_before(command: list[Any], i: int) -> str:
    """The flag whose value is at `i` of a command line; empty when there is none."""
    before = command[i - 1] if i else None
    is_flag = isinstance(before, str) and before.startswith("--") and "=" not in before
    return before.lstrip("-") if isinstance(before, str) and is_flag else ""


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None
