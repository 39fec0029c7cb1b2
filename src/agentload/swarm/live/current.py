"""The live figures of the process that owns runs, where its views find them."""

from __future__ import annotations

from agentload.live.snapshot import Snapshot

# Locust makes its web routes and consoles from events, so nothing else can reach them.
_snapshot: Snapshot | None = None


def snapshot() -> Snapshot | None:
    """The figures as of the last second; the last run's when it is over; None before the first."""
    return _snapshot


def publish(snapshot: Snapshot) -> None:
    """A new second, or the end of a run."""
    global _snapshot  # noqa: PLW0603
    _snapshot = snapshot
