"""The live figures of the process that owns runs, where its views find them."""

from __future__ import annotations

from dataclasses import replace

from agentload.live.snapshot import Snapshot

KEPT_RUNS = 8

# Locust makes its web routes and consoles from events, so nothing else can reach them.
_snapshot: Snapshot | None = None
_earlier: tuple[Snapshot, ...] = ()


def snapshot() -> Snapshot | None:
    """The figures as of the last second; the last run's when it is over; None before the first."""
    return _snapshot


def earlier() -> tuple[Snapshot, ...]:
    """The last figures of the runs before, the newest first, without their history."""
    return _earlier


def publish(snapshot: Snapshot) -> None:
    """A new second, or the end of a run."""
    global _snapshot, _earlier  # noqa: PLW0603
    if _snapshot is not None and _snapshot.run_id != snapshot.run_id:
        _earlier = (replace(_snapshot, history=()), *_earlier)[:KEPT_RUNS]
    _snapshot = snapshot
