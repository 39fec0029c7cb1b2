"""Which stretch of a run counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Window:
    """The measured stretch, in seconds since the run's start, and the turns cut around it."""

    from_s: float
    to_s: float
    cut_before: int
    cut_after: int

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker became `missing` or `running`, with the users it has or had."""

    time_s: float
    worker_id: str
    state: str
    users: int


@dataclass(frozen=True, slots=True)
class Degradation:
    """Stretches in which workers, with their users, were missing."""

    intervals_s: tuple[tuple[float, float], ...]
    min_users: int

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self.intervals_s)


def measured_window(
    start_s: np.ndarray, end_s: np.ndarray, from_s: float | None, to_s: float | None
) -> Window:
    """The window from the warm-up's end to the drain's begin; a turn belongs to where it started.

    Without bounds it reaches from 0 to the last instant there is.
    """
    ends = end_s[~np.isnan(end_s)]
    last_s = float(max([*ends[-1:], ends.max(initial=0.0), start_s.max(initial=0.0)]))
    low = 0.0 if from_s is None else from_s
    high = max(last_s if to_s is None else to_s, low)
    return Window(low, high, int((start_s < low).sum()), int((start_s > high).sum()))


def inside(start_s: np.ndarray, window: Window) -> np.ndarray:
    """Mask of the turns that started inside the window."""
    return (start_s >= window.from_s) & (start_s <= window.to_s)


def degradation(events: Iterable[WorkerState], target_users: int, run_s: float) -> Degradation:
    """Stretches with at least one worker missing, merged; one never back is missing to the end."""
    missing: dict[str, int] = {}
    intervals: list[tuple[float, float]] = []
    since: float | None = None
    fewest = target_users
    for event in sorted(events, key=lambda e: e.time_s):
        if event.state == "missing" and event.time_s < run_s:
            since = event.time_s if not missing else since
            missing[event.worker_id] = event.users
            fewest = min(fewest, target_users - sum(missing.values()))
        elif event.state == "running":
            missing.pop(event.worker_id, None)
        if since is not None and not missing:
            intervals.append((since, event.time_s))
            since = None
    if since is not None:
        intervals.append((since, run_s))
    return Degradation(tuple(intervals), fewest)
