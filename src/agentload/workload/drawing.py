"""Single draws of a session's behaviour, each from the `Random` of its turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from agentload.scenario.distributions import Distribution
from agentload.scenario.model import Scenario
from agentload.workload.origin import StartState
from agentload.workload.turn import ChildPlan, WaitKind


def whole(dist: Distribution | None, rng: Random, default: float = 1) -> float:
    """A draw rounded to a whole number, at least 1; `default` without a distribution."""
    return default if dist is None else max(1, round(dist.draw(rng)))


def draw_start_tokens(
    scenario: Scenario, state: StartState, front_tokens: float, rng: Random
) -> float:
    """Tokens of a session's first prompt; `front_tokens` are those of its system message."""
    start, subagents, interference = scenario.start, scenario.subagents, scenario.interference
    dist, before = start.warm_tokens, 0.0
    if state == "child":
        dist = subagents.start_tokens if subagents else None
    elif state == "one_shot":
        dist = interference.prompt_tokens if interference else None
    elif state == "fresh":
        dist, before = start.fresh_tokens, front_tokens
    if dist is None:
        raise ValueError(f"scenario {scenario.name} has no start tokens for {state} sessions")
    return before + dist.draw(rng) * scenario.context_scale


@dataclass(slots=True)
class Task:
    """One user turn: how many calls are left, and which of them is interrupted."""

    calls_left: float
    abort_call: float | None  # interrupted when this many calls are left

    def take_call(self) -> bool:
        """Count one call; True when the human interrupts it, which ends the task."""
        self.calls_left -= 1
        if self.abort_call is not None and self.calls_left == self.abort_call:
            self.calls_left = 0
            return True
        return False


def draw_task(scenario: Scenario, rng: Random) -> Task:
    """A user turn. An endless one (no `calls_per_user_turn`) is never interrupted."""
    calls = whole(scenario.turns.calls_per_user_turn, rng, math.inf)
    aborts = scenario.aborts
    if aborts is None or rng.random() >= aborts.probability or math.isinf(calls):
        return Task(calls, None)
    return Task(calls, rng.randrange(int(calls)))


def draw_spawns(scenario: Scenario, turn_index: int, rng: Random) -> tuple[ChildPlan, ...]:
    """The subagents a user turn starts; most start none."""
    subagents = scenario.subagents
    if subagents is None or rng.random() >= subagents.probability:
        return ()
    return tuple(
        ChildPlan(n, turn_index, int(whole(subagents.calls, rng)))
        for n in range(int(whole(subagents.fanout, rng)))
    )


def draw_wait(scenario: Scenario, user: bool, parts: int, rng: Random) -> tuple[WaitKind, float]:
    """The wait before a turn; of tools that run side by side the slowest counts."""
    waits = scenario.waits
    if user and waits.human is not None:
        return "human", waits.human.draw(rng)
    return "tool", max(waits.tool.draw(rng) for _ in range(parts))


def draw_output(scenario: Scenario, rng: Random) -> tuple[int, int]:
    """Output tokens, and how many of them join the history (thinking does not)."""
    answer = int(whole(scenario.turns.output_tokens, rng))
    reasoning = scenario.turns.reasoning
    if reasoning is not None and rng.random() < reasoning.share:
        return round(answer * reasoning.output_factor), answer
    return answer, answer


def draw_break(scenario: Scenario, rng: Random) -> tuple[float, bool] | None:
    """(share of the prompt that stays, whether the rest is dropped), or None for no break."""
    breaks = scenario.prefix_breaks
    if breaks is None or rng.random() >= breaks.probability:
        return None
    return breaks.keep_share.draw(rng), rng.random() < breaks.rewind_share


def draw_abort(scenario: Scenario, output_tokens: int, rng: Random) -> tuple[float, float]:
    """(share of the answer that streams, seconds after the first token) of an interrupted call."""
    if scenario.aborts is None:
        raise ValueError("the scenario has no aborts")
    share = scenario.aborts.output_share.draw(rng)
    return share, share * output_tokens / scenario.aborts.stream_tokens_per_s
