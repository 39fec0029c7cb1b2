"""Worker loss as the master sees it, from the public cases C06 and F06."""

from __future__ import annotations

import pytest

from agentload.swarm import tally
from agentload.swarm.watch import WorkerWatch

UP = {"w1": "running", "w2": "running", "w3": "running", "w4": "running"}


def test_missing_workers_are_listed_with_start_and_end() -> None:
    """Case C06: 107 s of a 300 s run were without one of four workers."""
    watch = WorkerWatch(frozenset(UP))
    missing = {45: ["w2"], 52: [], 200: ["w4"]}
    away: list[str] = []
    for second in range(301):
        away = missing.get(second, away)
        watch.observe(float(second), {**UP, **dict.fromkeys(away, "missing")})
    watch.close(300.0)
    assert watch.intervals_s == {"w2": [(45.0, 52.0)], "w4": [(200.0, 300.0)]}
    assert [(c.at_s, c.kind, c.client_id) for c in watch.changes] == [
        (45.0, "worker_missing", "w2"),
        (52.0, "worker_returned", "w2"),
        (200.0, "worker_missing", "w4"),
    ]


def test_a_worker_that_quits_left_and_one_that_was_missing_is_told_once() -> None:
    watch = WorkerWatch(frozenset({"w1", "w2"}))
    assert [c.kind for c in watch.observe(1.0, {"w1": "running"})] == ["worker_left"]
    assert watch.observe(2.0, {"w1": "missing"})[0].kind == "worker_missing"
    assert watch.observe(3.0, {}) == []  # Locust forgets a missing worker after a minute


def test_a_worker_that_joins_late_is_named() -> None:
    watch = WorkerWatch(frozenset({"w1"}))
    both = {"w1": "running", "w9": "ready"}
    assert [(c.kind, c.client_id) for c in watch.observe(5.0, both)] == [("worker_joined", "w9")]
    assert watch.observe(6.0, both) == []
    assert [c.kind for c in watch.observe(7.0, {"w1": "running"})] == ["worker_left"]


def test_nothing_changes_while_nothing_changes() -> None:
    watch = WorkerWatch(frozenset(UP))
    assert watch.observe(1.0, UP) == []
    watch.close(2.0)
    assert watch.intervals_s == {}


def test_statuses_add_up_and_what_is_no_number_counts_nothing() -> None:
    statuses: list[dict[str, object]] = [
        {"sent": 5, "planned": 5, "loop_lag_p99_s": 0.001, "shortest_gap_s": 0.02, "chunks": 100},
        {"sent": 3, "planned": 4, "loop_lag_p99_s": 0.004, "shortest_gap_s": None, "chunks": True},
        {"sent": "many", "planned": float("nan"), "loop_lag_p99_s": float("inf")},
    ]
    counts = tally.counts(statuses, recorded=7)
    assert (counts.planned, counts.sent, counts.recorded, counts.lost) == (9, 8, 7, 1)
    evidence = tally.evidence(statuses, rows_lost=1)
    assert evidence.loop_lag_p99_s == 0.004
    assert evidence.shortest_gap_s == 0.02
    assert evidence.chunks == 100
    assert evidence.busy_seconds_share is None
    assert evidence.throttled_periods is None
    assert tally.health(statuses[0])["loop_lag_p99_s"] == pytest.approx(0.001)


def test_rows_from_a_dead_workers_disk_count_as_sent_though_its_last_status_is_older() -> None:
    dead, alive = {"sent": 4, "planned": 4}, {"sent": 10, "planned": 11}
    statuses = [tally.at_least(dead, 6), tally.at_least(alive, 9)]
    counts = tally.counts(statuses, recorded=15)
    assert (counts.planned, counts.sent, counts.recorded, counts.lost) == (17, 16, 15, 1)


def test_more_rows_than_sent_is_no_negative_loss() -> None:
    assert tally.counts([{"sent": 1}], recorded=2).lost == 0
