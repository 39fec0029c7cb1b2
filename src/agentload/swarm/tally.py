"""What all processes of a run report, added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from agentload.recording.manifest import Counts
from agentload.recording.verdict import Evidence

Status = Mapping[str, Any]

LIMIT = 1e15  # of what a run can count, and of the seconds between two clocks

_HEALTH = (
    "chunks",
    "merged_chunks",
    "late_merged_chunks",
    "user_stamped_chunks",
    "shortest_gap_s",
    "busy_seconds_share",
    "loop_lag_p99_s",
    "frozen_s",
    "throttled_periods",
    "rows_refused",
    "listener_errors",
)


def number(status: Status, key: str) -> float | None:
    """A sane number of a status, None for anything else: it came over an open port."""
    value = status.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if abs(value) < LIMIT else None


def total(statuses: Iterable[Status], key: str) -> int:
    return int(sum(number(status, key) or 0 for status in statuses))


def largest(statuses: Iterable[Status], key: str) -> float | None:
    return max((v for s in statuses if (v := number(s, key)) is not None), default=None)


def smallest(statuses: Iterable[Status], key: str) -> float | None:
    return min((v for s in statuses if (v := number(s, key)) is not None), default=None)


def at_least(status: Status, turns: int) -> Status:
    """The status of a worker from which so many turns came: rows that were read from the disk of
    a dead one can be newer than the last status it sent."""
    known = {key: max(total([status], key), turns) for key in ("planned", "sent")}
    return {**status, **known}


def counts(statuses: Iterable[Status], recorded: int) -> Counts:
    """`recorded` are the rows in the run folder; what was sent beyond them is lost."""
    known = list(statuses)
    sent = total(known, "sent")
    return Counts(
        planned=total(known, "planned"),
        sent=sent,
        recorded=recorded,
        dropped=total(known, "dropped"),
        lost=max(0, sent - recorded),
    )


def health(status: Status) -> dict[str, float | int | None]:
    """The part of a status that a reader of the manifest wants to see."""
    return {key: number(status, key) for key in _HEALTH}


def evidence(statuses: Iterable[Status], **more: Any) -> Evidence:
    """The worst of all processes, with what only the owner knows in `more`."""
    known = list(statuses)
    throttled = largest(known, "throttled_periods")
    return Evidence(
        listener_errors=total(known, "listener_errors"),
        loop_lag_p99_s=largest(known, "loop_lag_p99_s"),
        shortest_gap_s=smallest(known, "shortest_gap_s"),
        chunks=total(known, "chunks"),
        late_merged_chunks=total(known, "late_merged_chunks"),
        user_stamped_chunks=total(known, "user_stamped_chunks"),
        busy_seconds_share=largest(known, "busy_seconds_share"),
        throttled_periods=None if throttled is None else int(throttled),
        **more,
    )
