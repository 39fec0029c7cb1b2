"""The charts' points stay in the order of time, and few."""

from __future__ import annotations

from agentload.live.history import MAX_POINTS, History
from agentload.live.snapshot import Point


def history(*times_s: float) -> History:
    found = History()
    for time_s in times_s:
        found.add(Point(time_s, users=1, in_flight=0))
    return found


def test_the_end_of_a_run_takes_the_place_of_points_after_it() -> None:
    assert [p.time_s for p in history(1.0, 2.0, 3.2, 3.1).points] == [1.0, 2.0, 3.1]
    assert [p.time_s for p in history(1.0, 2.0, 2.0).points] == [1.0, 2.0]


def test_a_long_run_is_thinned_out() -> None:
    points = history(*map(float, range(10 * MAX_POINTS))).points
    assert MAX_POINTS // 2 <= len(points) < MAX_POINTS
    assert points[-1].time_s > 9.9 * MAX_POINTS
