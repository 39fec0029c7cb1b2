"""The way of totals from the processes that load to the one that owns the run.

A message holds the new counts, not differences: of each turn class that changed its counts, of each
histogram the buckets that changed since the last message that was answered. All counts only grow,
so the receiver takes what is larger than what it has: a message that is lost, repeated or late
neither loses nor doubles a turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentload.live.counting import Dirty, LiveTurns
from agentload.live.histogram import MAX_KEY, ZERO_KEY, LogHistogram
from agentload.live.totals import COUNTS, HISTOGRAMS, TURN_CLASSES, ClassTotals

MAX_ERROR_CLASSES = 64
MAX_ERROR_CHARS = 80
_MAX_COUNT = 1 << 62


@dataclass(slots=True)
class LiveSender:
    """One process's side. A message holds all that was not answered yet."""

    turns: LiveTurns
    _seq: int = 0
    _unanswered: Dirty = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """The next message: plain values that any message can carry."""
        for turn_class, histograms in self.turns.unsent.items():
            waiting = self._unanswered.setdefault(turn_class, {})
            for name, keys in histograms.items():
                waiting.setdefault(name, set()).update(keys)
        self.turns.unsent = {}
        self._seq += 1
        return {
            "seq": self._seq,
            "in_flight": {name: n for name, n in self.turns.in_flight.items() if n > 0},
            "classes": {
                name: _class_message(self.turns.totals[name], keys)
                for name, keys in self._unanswered.items()
            },
        }

    def answered(self, seq: Any) -> None:
        """The owner took a message; only the last one says that it has everything."""
        if seq == self._seq:
            self._unanswered = {}


def _class_message(totals: ClassTotals, keys: dict[str, set[int]]) -> dict[str, Any]:
    return {
        "counts": [totals.counts[name] for name in COUNTS],
        "errors": dict(totals.errors.most_common(MAX_ERROR_CLASSES)),
        "histograms": {
            name: _histogram_message(totals.histograms[name], changed)
            for name, changed in keys.items()
            if changed
        },
    }


def _histogram_message(histogram: LogHistogram, keys: Iterable[int]) -> list[Any]:
    flat = [part for key in keys for part in (key, histogram.bins[key])]
    return [histogram.min_us, histogram.max_us, histogram.sum_us, flat]


@dataclass(slots=True)
class LiveReceiver:
    """The owner's side: what each process said, and all of it added.

    The port is open to whoever reaches it, so what is no such message is left out, never raised.
    """

    totals: dict[str, ClassTotals] = field(default_factory=dict)
    in_flight: dict[str, dict[str, int]] = field(default_factory=dict)
    _of: dict[str, dict[str, ClassTotals]] = field(default_factory=dict)

    def take(self, sender: str, message: Any) -> int | None:
        """Add what is new; returns the number to answer with, None for what is no message."""
        if not _is_message(message):
            return None
        self.in_flight[sender] = message["in_flight"]
        known = self._of.setdefault(sender, {})
        for turn_class, new in message["classes"].items():
            total = self.totals.setdefault(turn_class, ClassTotals())
            _take_class(known.setdefault(turn_class, ClassTotals()), new, total)
        seq: int = message["seq"]
        return seq

    def in_flight_of(self, turn_class: str) -> int:
        return sum(of.get(turn_class, 0) for of in self.in_flight.values())


def _take_class(known: ClassTotals, new: dict[str, Any], total: ClassTotals) -> None:
    counts = list(zip(COUNTS, new["counts"], strict=True))
    for have, more, into in (
        (known.counts, counts, total.counts),
        (known.errors, new["errors"].items(), total.errors),
    ):
        for name, count in more:
            if count > have[name]:
                into[name] += count - have[name]
                have[name] = count
    for name, part in new["histograms"].items():
        _take_histogram(known.histograms[name], part, total.histograms[name])


def _take_histogram(known: LogHistogram, part: list[Any], total: LogHistogram) -> None:
    min_us, max_us, sum_us, flat = part
    total.widen(min_us, max_us)
    if sum_us > known.sum_us:
        total.sum_us += sum_us - known.sum_us
        known.sum_us = sum_us
    have, into = known.bins, total.bins
    for key, count in zip(flat[::2], flat[1::2], strict=True):
        before = have.get(key, 0)
        if count > before:
            into[key] += count - before
            have[key] = count


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and _is_count(message.get("seq"))
        and _are_counts(message.get("in_flight"), TURN_CLASSES)
        and isinstance(message.get("classes"), dict)
        and all(name in TURN_CLASSES for name in message["classes"])
        and all(map(_is_class, message["classes"].values()))
    )


def _is_class(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and isinstance(part.get("counts"), list | tuple)
        and len(part["counts"]) == len(COUNTS)
        and all(map(_is_count, part["counts"]))
        and _are_counts(part.get("errors"), None)
        and isinstance(part.get("histograms"), dict)
        and all(name in HISTOGRAMS for name in part["histograms"])
        and all(map(_is_histogram, part["histograms"].values()))
    )


def _is_histogram(part: Any) -> bool:
    if not isinstance(part, list | tuple) or len(part) != 4 or not isinstance(part[3], list):
        return False
    *sizes, flat = part
    return (
        all(map(_is_count, sizes))
        and len(flat) % 2 == 0
        and all(type(key) is int and ZERO_KEY <= key <= MAX_KEY for key in flat[::2])
        and all(map(_is_count, flat[1::2]))
    )


def _are_counts(value: Any, names: tuple[str, ...] | None) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_ERROR_CLASSES
        and all(isinstance(name, str) and len(name) <= MAX_ERROR_CHARS for name in value)
        and (names is None or all(name in names for name in value))
        and all(map(_is_count, value.values()))
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT
