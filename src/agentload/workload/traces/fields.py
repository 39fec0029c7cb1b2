"""Values of one line of a trace, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

MOST_TOKENS = 100_000_000
_MOST_CHARS = 500
_BLOCK_MASK = 2**63 - 1  # so that eight bytes hold a hash


class LineError(ValueError):
    """A line cannot be used; the text names the key and what is allowed."""


def _get(row: Mapping[str, Any], key: str) -> Any:
    if not isinstance(row, Mapping) or row.get(key) is None:
        raise LineError(f"{key} is missing")
    return row[key]


def integer(row: Mapping[str, Any], key: str, low: int = 0) -> int:
    """A whole number; digits as text too, as CSV and OTLP have them."""
    value = _get(row, key)
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST_TOKENS:
        raise LineError(f"{key}: {_shown(value)}; allowed are {low} to {MOST_TOKENS:,}")
    return value


def number(row: Mapping[str, Any], key: str, low: float = 0.0) -> float:
    """A finite number of at least `low`; as text too."""
    value = _get(row, key)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise LineError(f"{key}: {_shown(value)} is not a number") from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise LineError(f"{key}: {_shown(value)} is not a number")
    if not math.isfinite(value) or value < low:
        raise LineError(f"{key}: {_shown(value)}; allowed is {low:g} and more")
    return float(value)


def word(row: Mapping[str, Any], key: str) -> str:
    """A name: text that is not empty, or a whole number."""
    value = _get(row, key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or len(value) > _MOST_CHARS:
        raise LineError(f"{key}: {_shown(value)}; allowed is text of 1 to {_MOST_CHARS} characters")
    return value


def text(row: Mapping[str, Any], key: str) -> str:
    value = _get(row, key)
    if not isinstance(value, str):
        raise LineError(f"{key}: {_shown(value)} is not text")
    return value


def items(row: Mapping[str, Any], key: str) -> list[Any]:
    """A list; [] when the key is not there."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise LineError(f"{key}: {_shown(value)} is not a list")
    return value


def block_ids(row: Mapping[str, Any], key: str = "hash_ids") -> list[int] | None:
    """Hashes of the blocks of a prompt; None when the key is not there."""
    if row.get(key) is None:
        return None
    found = items(row, key)
    if not all(isinstance(block, int) for block in found):
        raise LineError(f"{key} holds more than whole numbers")
    return [block & _BLOCK_MASK for block in found]


def instant_s(value: Any, key: str) -> float:
    """Unix seconds of `YYYY-MM-DD HH:MM:SS.fffffff` or another ISO 8601 form; else UTC is meant."""
    if not isinstance(value, str):
        raise LineError(f"{key}: {_shown(value)} is not a time")
    cut, _, rest = value.strip().replace("Z", "+00:00").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        found = datetime.fromisoformat(f"{cut}.{digits[:6]:0<6}{zone}" if rest else cut)
    except ValueError:
        raise LineError(f"{key}: {_shown(value)} is not a time") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
