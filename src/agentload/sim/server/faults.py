"""Faults that the server shows on purpose, so that clients and users see what they look like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


class FaultError(ValueError):
    """A fault specification that cannot be read; the text says what is allowed."""


# Kind: its own settings with their defaults. None: no value unless given.
KINDS: Final[dict[str, dict[str, float | None]]] = {
    "stall": {"after": 5, "seconds": 2},
    "cut": {"after": 5},
    "error": {"after": 5, "code": 500},
    "status": {"code": 500, "retry_after": None},
    "slow-headers": {"seconds": 2},
    "buffer": {},
    "slow-tokenizer": {"factor": 10},
    "timestamp": {},
    "restart": {},
}
_SHARED: Final[dict[str, float | None]] = {"every": 1, "times": None, "skip": 0}
_MOST: Final = 1_000_000
_RANGES: Final = {"every": (1, _MOST), "factor": (1, _MOST), "code": (400, 599)}


@dataclass(frozen=True, slots=True)
class Fault:
    """`every` n-th generation request after the first `skip`, at most `times` of them.

    `after` counts chunks with text; `seconds` are wall seconds; `factor` multiplies the tokenizer's
    time per token.
    """

    kind: str
    settings: dict[str, float | None]
    spec: str

    def number(self, name: str) -> float:
        value = self.settings[name]
        assert value is not None, name
        return value


def parse(spec: str) -> Fault:
    """`KIND` or `KIND:name=number,...`."""
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        raise FaultError(f"{spec!r}: no fault is called {kind!r}; there are {', '.join(KINDS)}")
    settings = {**KINDS[kind], **_SHARED}
    for pair in filter(None, rest.split(",")):
        name, _, text = pair.partition("=")
        if name not in settings:
            allowed = ", ".join(settings)
            raise FaultError(f"{spec!r}: {kind} has no setting {name!r}; it has {allowed}")
        settings[name] = _number(spec, name, text)
    return Fault(kind, settings, spec)


def _number(spec: str, name: str, text: str) -> float:
    low, high = _RANGES.get(name, (0, _MOST))
    try:
        value = float(text)
    except ValueError:
        value = low - 1
    whole = name not in ("seconds", "factor")
    if not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise FaultError(f"{spec!r}: {name}={text!r} must be a {kind} from {low:g} to {high:g}")
    return value


class FaultPlan:
    """Decides which faults a request gets; requests are counted in order of arrival."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = [_Counted(fault) for fault in faults]

    @property
    def specs(self) -> list[str]:
        return [counted.fault.spec for counted in self._faults]

    def next_request(self) -> list[Fault]:
        return [counted.fault for counted in self._faults if counted.hits()]


@dataclass(slots=True)
class _Counted:
    fault: Fault
    seen: int = 0
    used: int = 0

    def hits(self) -> bool:
        self.seen += 1
        times = self.fault.settings["times"]
        if times is not None and self.used >= times:
            return False
        beyond = self.seen - self.fault.number("skip")
        hit = beyond > 0 and (beyond - 1) % self.fault.number("every") == 0
        self.used += hit
        return hit
