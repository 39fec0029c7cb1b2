"""What the charts of a run show: one point a second, thinned out as the run grows long."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentload.live.histogram import percentiles_of
from agentload.live.snapshot import Point

MAX_POINTS = 1_200
WINDOW_S = 60

Bins = dict[int, int]


@dataclass(slots=True)
class Window:
    """Percentiles over the last `WINDOW_S` seconds: the counts now less those back then."""

    _seen: deque[tuple[float, Bins]] = field(default_factory=deque)

    def percentiles_s(
        self, now_s: float, bins: Mapping[int, int], qs: tuple[float, ...]
    ) -> list[float | None]:
        """Take the counts of this second; percentiles of what came within the window."""
        self._seen.append((now_s, dict(bins)))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        began_s, before = self._seen[0]
        if began_s > now_s - WINDOW_S:
            before = {}
        recent = {key: n - before.get(key, 0) for key, n in bins.items()}
        return percentiles_of(recent, qs)


@dataclass(slots=True)
class History:
    """At most `MAX_POINTS` points: when full, every other one goes and half as many come."""

    points: list[Point] = field(default_factory=list)
    every: int = 1
    _added: int = 0

    def add(self, point: Point) -> None:
        self._added += 1
        if self._added % self.every:
            return
        while self.points and self.points[-1].time_s >= point.time_s:
            self.points.pop()  # made while the run was being closed: it had ended by then
        self.points.append(point)
        if len(self.points) >= MAX_POINTS:
            self.points = self.points[1::2]
            self.every *= 2
