"""Which turns of a run count, from its stages and its scenario."""

from __future__ import annotations

from agentload.live.counting import CountingRules
from agentload.live.figures import given_limits
from agentload.scenario.model import Scenario
from agentload.swarm.stages import WARM_UP, StagePlan
from agentload.turn_metrics import plausible_tokens_per_s


def counting_rules(plan: StagePlan, scenario: Scenario) -> CountingRules:
    """The rules by which the analysis counts, too; `scenario.pace` is a simulator's speed."""
    start_s, end_s = plan.measured_window_s()
    unmeasured = {step.name for step in plan.steps if not step.measured}
    return CountingRules(
        unmeasured_stages=frozenset({WARM_UP, *unmeasured}),
        window_from_s=start_s,
        window_to_s=end_s,
        max_tokens_per_s=plausible_tokens_per_s(scenario.pace),
        slos=slo_limits(scenario),
    )


def slo_limits(scenario: Scenario) -> dict[str, dict[str, float]]:
    """The limits of the scenario in seconds, by turn class."""
    return given_limits({name: slo.model_dump() for name, slo in scenario.slos.items()})
