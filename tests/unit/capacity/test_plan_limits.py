"""What the printed plan says of limits and of money."""

from __future__ import annotations

import pytest

from agentload.capacity.plan.demand import Demand, PlannedSession, PlannedTurn
from agentload.capacity.plan.output import money, unchecked_limits, unmeasured_steps
from agentload.capacity.plan.slo import Target
from agentload.scenario.running import Slo
from agentload.sim.profiles import InForce, load_profile


def test_limits_that_no_turn_was_held_against_are_named() -> None:
    turns = (PlannedTurn("cold", 100, 0, 10, 0.0), PlannedTurn("tool", 200, 110, 10, 1.0))
    demand = Demand("two classes", (PlannedSession("group", 0, turns),))
    limit = Slo(ttft_s=1.0)
    assert unchecked_limits(Target({"tool": limit, "cold": limit}), demand) == []
    (said,) = unchecked_limits(Target({"tool": limit, "child": limit}), demand)
    assert said.startswith("child: ")
    assert "not checked" in said


def test_steps_larger_than_any_that_was_measured_are_named() -> None:
    sheet = load_profile("H100-80G", "Qwen2.5-7B").cost_file
    assert unmeasured_steps([2048, 16384], sheet) == ""  # nothing was measured: said elsewhere
    in_force = InForce(max_num_batched_tokens=2048)
    calibrated = sheet.model_copy(update={"in_force": in_force})
    assert unmeasured_steps([1024, 2048], calibrated) == ""
    assert unmeasured_steps([], calibrated) == ""
    said = unmeasured_steps([2048, 8192], calibrated)
    assert "2,048" in said
    assert "--max-num-batched-tokens=8192" in said


@pytest.mark.parametrize(
    ("cost", "text"), [(3.5, "3.50"), (99.0, "99.00"), (100.0, "100"), (12345.6, "12,346")]
)
def test_a_small_price_keeps_its_hundredths(cost: float, text: str) -> None:
    assert money(cost) == text
