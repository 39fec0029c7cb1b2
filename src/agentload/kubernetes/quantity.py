"""Kubernetes quantities: `500m`, `2Gi`, `1e3`."""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
}
_SCALES = {**_DECIMAL, **_BINARY}


def parse_quantity(text: str) -> Decimal:
    """The number that a quantity stands for; raises `ValueError` for what the API refuses."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity: a number, then Ki Mi Gi, k M G, m, or nothing")
    number, suffix = Decimal(found[1]), found[2] or ""
    return number * _SCALES[suffix] if suffix in _SCALES else Decimal(found[1] + suffix)
