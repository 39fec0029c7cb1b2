"""When a run may end early."""

from __future__ import annotations

from random import Random

import pytest

from agentload.scenario.running import Stop
from agentload.workload.stopping import quantile_interval, stop_reason


def test_the_interval_holds_the_true_quantile_as_often_as_it_says() -> None:
    rng, hits = Random(1), 0
    for _ in range(400):
        interval = quantile_interval(sorted(rng.random() for _ in range(900)), 0.99)
        assert interval is not None
        hits += interval[0] <= 0.99 <= interval[1]
    assert 0.91 <= hits / 400 <= 0.985


def test_too_few_samples_have_no_interval() -> None:
    assert quantile_interval([0.1] * 300, 0.99) is None
    assert quantile_interval([], 0.99) is None
    assert quantile_interval([1.0, 2.0, 3.0], 0.5) is None
    # n = 20: ranks floor(10 - 4.38) and ceil(10 + 4.38)
    assert quantile_interval([float(i) for i in range(1, 21)], 0.5) == (5.0, 15.0)


@pytest.mark.parametrize(
    ("rule", "elapsed_s", "turns", "reason"),
    [
        ({}, 1e9, 10**9, None),
        ({"after_s": 60}, 59.9, 10**6, None),
        ({"after_s": 60}, 60.0, 0, "60 s are over"),
        ({"after_turns": 100}, 5.0, 99, None),
        ({"after_turns": 100}, 5.0, 100, "100 turns are done"),
    ],
)
def test_time_and_turns(rule: dict, elapsed_s: float, turns: int, reason: str | None) -> None:
    assert stop_reason(Stop(**rule), elapsed_s, turns, []) == reason


def test_the_interval_of_p99_has_to_be_narrow_and_the_time_come() -> None:
    rng = Random(2)
    ttfts_s = [rng.uniform(1.0, 1.02) for _ in range(2000)]
    rule = Stop(ttft_p99_interval=0.05, not_before_s=30)
    assert stop_reason(rule, 29.0, 2000, ttfts_s) is None
    assert stop_reason(rule, 30.0, 300, ttfts_s[:300]) is None
    said = stop_reason(rule, 30.0, 2000, ttfts_s)
    assert said is not None
    assert said.startswith("P99 TTFT 1.0")
    wide = [rng.expovariate(0.5) ** 2 for _ in range(2000)]
    assert stop_reason(rule, 30.0, 2000, wide) is None
