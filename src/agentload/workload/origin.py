"""Which session of a run a session is."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from agentload.scenario.distributions import pick
from agentload.scenario.model import Scenario
from agentload.workload.prefix import first_of_group, group_of
from agentload.workload.turn import ChildPlan

StartState = Literal["warm", "fresh", "resumed_cold", "child", "one_shot"]
_START_STATES: tuple[StartState, ...] = ("warm", "fresh", "resumed_cold")


@dataclass(frozen=True, slots=True)
class Origin:
    """What makes one session different from the others; `key` goes into each of its draws."""

    key: str
    session_id: str
    parent_session_id: str | None
    state: StartState
    group: int = 0
    opens_run: bool = False  # index 0: no session before it has sent the shared prefix
    opens_group: bool = False  # no session of a lower index is in its group
    turns: int | None = None  # as many turns; None: by the scenario


def origin_of(scenario: Scenario, index: int) -> Origin:
    """The origin of session `index` of a run; the caller hands out indices, each once."""
    mix = scenario.start.mix
    rng = Random(f"{scenario.seed}/{index}/state")
    return Origin(
        key=str(index),
        session_id=f"s{scenario.seed}-{index:06d}",
        parent_session_id=None,
        state=_START_STATES[pick((mix.warm, mix.fresh, mix.resumed_cold), rng)],
        group=group_of(scenario, index),
        opens_run=index == 0,
        opens_group=first_of_group(scenario, index),
    )


def one_shot_origin(scenario: Scenario, number: int) -> Origin:
    """The origin of the session that `interference` sends as its prompt `number`."""
    return Origin(f"x{number}", f"x{scenario.seed}-{number:06d}", None, "one_shot", turns=1)


def child_origin(parent: Origin, plan: ChildPlan) -> Origin:
    """The origin of a subagent."""
    suffix = f".{plan.turn_index}.{plan.number}"
    return Origin(
        parent.key + suffix, parent.session_id + suffix, parent.session_id, "child",
        turns=plan.calls,
    )  # fmt: skip
