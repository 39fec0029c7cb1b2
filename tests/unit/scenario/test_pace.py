"""A simulator at k times real time has agents that think k times as fast."""

from pathlib import Path
from random import Random

import pytest
from pydantic import TypeAdapter

from agentload.scenario import load
from agentload.scenario.distributions import Distribution
from agentload.scenario.pace import at_pace, divided

SCENARIOS = Path(__file__).parents[3] / "scenarios"
DISTRIBUTION: TypeAdapter[Distribution] = TypeAdapter(Distribution)


@pytest.mark.parametrize(
    "given",
    [
        {"dist": "constant", "value": 6.0},
        {"dist": "uniform", "min": 1.0, "max": 4.0},
        {"dist": "lognormal", "median": 2.0, "sigma": 1.5, "min": 0.1, "max": 30.0},
        {"dist": "quantiles", "p": [0.0, 0.5, 1.0], "values": [0.0, 2.0, 9.0]},
        {"dist": "choice", "values": [1.0, 5.0], "weights": [2.0, 1.0]},
        {"dist": "preset", "name": "tracelab_tool", "max": 300.0},
        {
            "dist": "mixture",
            "parts": [
                {"weight": 1.0, "of": {"dist": "constant", "value": 3.0}},
                {"weight": 2.0, "of": {"dist": "uniform", "min": 0.0, "max": 8.0}},
            ],
        },
    ],
    ids=lambda given: given["dist"],
)
def test_every_draw_is_divided(given: dict[str, object]) -> None:
    dist = DISTRIBUTION.validate_python(given)
    slow, fast = Random(7), Random(7)
    for _ in range(200):
        assert divided(dist, 8.0).draw(fast) == pytest.approx(dist.draw(slow) / 8.0)


def test_waits_limits_and_floor_keep_their_proportion_and_stages_their_time() -> None:
    scenario = load(SCENARIOS / "steady-append.yaml")
    fast = at_pace(scenario, 10.0)
    assert fast.pace == 10.0
    assert fast.slos["tool"].ttft_s == pytest.approx(0.2)  # 2 s in the file
    assert fast.stalls.min_s == pytest.approx(0.025)
    assert fast.stages == scenario.stages
    assert fast.deadlines == scenario.deadlines
    assert fast.turns == scenario.turns


def test_rates_are_multiplied_and_intervals_divided() -> None:
    cold = load(SCENARIOS / "cold-interference.yaml")
    assert cold.interference is not None
    every_s = cold.interference.every_s
    fast = at_pace(cold, 4.0).interference
    assert fast is not None
    assert fast.every_s == pytest.approx(every_s / 4.0)


def test_the_scenario_of_a_finished_run_is_not_divided_again() -> None:
    fast = at_pace(load(SCENARIOS / "steady-append.yaml"), 12.0)
    assert at_pace(fast, 12.0) is fast
    assert at_pace(fast, 1.0).slos["tool"].ttft_s == pytest.approx(2.0)
