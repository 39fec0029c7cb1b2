"""When sessions start, against the stated processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from agentload.scenario import Scenario
from agentload.workload.arrival import interference_starts, open_starts, planned_duration_s

MakeScenario = Callable[..., Scenario]


def open_scenario(make: MakeScenario, cv: float, *rates: float, seconds: float = 4000) -> Scenario:
    stages = [
        {"name": f"s{i}", "duration_s": seconds, "users": 50, "sessions_per_s": rate}
        for i, rate in enumerate(rates)
    ]
    return make(arrivals={"population": "open", "cv": cv}, stages=stages)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gaps_have_the_stated_mean_and_variation(make_scenario: MakeScenario, cv: float) -> None:
    starts = list(open_starts(open_scenario(make_scenario, cv, 2.0, seconds=20_000)))
    gaps = [b.at_s - a.at_s for a, b in pairwise(starts)]
    # standard error of the mean: cv * 0.5 / sqrt(40,000)
    assert mean(gaps) == pytest.approx(0.5, abs=4 * cv * 0.5 / 200)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.05)
    assert [start.index for start in starts] == list(range(len(starts)))


def test_each_stage_has_its_own_rate(make_scenario: MakeScenario) -> None:
    starts = list(open_starts(open_scenario(make_scenario, 1.0, 1.0, 5.0)))
    early = sum(start.at_s < 4000 for start in starts)
    assert early == pytest.approx(4000, abs=4 * 4000**0.5)
    assert len(starts) - early == pytest.approx(20_000, abs=4 * 20_000**0.5)
    assert all(a.at_s <= b.at_s for a, b in pairwise(starts))
    assert starts[-1].at_s < 8000


def test_the_same_seed_gives_the_same_starts(make_scenario: MakeScenario) -> None:
    first, second = (list(open_starts(open_scenario(make_scenario, 2.0, 3.0))) for _ in range(2))
    assert first == second


def test_a_closed_population_has_no_starts(make_scenario: MakeScenario) -> None:
    assert list(open_starts(make_scenario())) == []
    assert list(interference_starts(make_scenario())) == []


def test_interference_comes_in_bursts_within_the_stages(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(
        interference={
            "every_s": 20,
            "burst": 2,
            "prompt_tokens": {"dist": "constant", "value": 100},
            "output_tokens": {"dist": "constant", "value": 1},
        }
    )
    assert planned_duration_s(scenario.stages) == 60
    starts = [(start.index, start.at_s) for start in interference_starts(scenario)]
    assert starts == [(0, 20.0), (1, 20.0), (2, 40.0), (3, 40.0)]
