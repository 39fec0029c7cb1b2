"""Sessions as token counts share exactly the blocks that their texts would share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload.capacity.plan.demand import (
    Demand,
    DemandError,
    PlannedSession,
    PlannedTurn,
    core_turns,
    of_scenario,
)
from agentload.scenario import load
from agentload.sim.core import EngineConfig, Frontend, Offline, Replica, StepCost
from agentload.workload.content import Corpus
from agentload.workload.session import Session

ROOT = Path(__file__).parents[3]
BLOCK = 16
ROOMY = EngineConfig(max_num_seqs=8, max_num_batched_tokens=100_000, num_blocks=100_000)


def session(turns: list[tuple[int, int]], shared: int = 0, group: str = "g") -> PlannedSession:
    """(prompt tokens, prefix tokens) of each turn; answers of two tokens."""
    made = tuple(PlannedTurn("tool", prompt, prefix, 2, 0.0) for prompt, prefix in turns)
    return PlannedSession(group, shared, made)


def hits(sessions: list[PlannedSession]) -> list[list[int]]:
    """Cached tokens of every turn when the sessions run one after the other in a roomy cache."""
    replica = Replica(ROOMY, StepCost(0.01, 0, 0, 0, 0), Frontend(0.0, 0.0))
    offline = Offline([replica])
    for number, one in enumerate(sessions):
        turns = (turn for _, turn in core_turns(one, number, BLOCK))
        offline.add_session(turns, 1000.0 * number)
    found: list[list[int]] = [[] for _ in sessions]
    for result in offline.run():
        found[result.session].append(result.request.cached_tokens or 0)
    return found


def by_text(sessions: list[PlannedSession]) -> list[list[int]]:
    """The same from texts spelled out token by token: a block is found when an earlier prompt has
    the same text up to its end; the last token of a prompt is always computed."""
    seen: set[tuple[object, ...]] = set()
    found: list[list[int]] = []
    for number, one in enumerate(sessions):
        front = one.shared_tokens // BLOCK * BLOCK
        text: list[object] = [("front", one.group, i) for i in range(front)]
        found.append([])
        for index, turn in enumerate(one.turns):
            keep = front if index == 0 else turn.prefix_tokens
            keep = min(keep, turn.prompt_tokens - 1) // BLOCK * BLOCK
            text = text[:keep]
            text += [(number, index, i) for i in range(turn.prompt_tokens - len(text))]
            blocks = 0
            while (blocks + 1) * BLOCK <= turn.prompt_tokens - 1 and tuple(
                text[: (blocks + 1) * BLOCK]
            ) in seen:
                blocks += 1
            found[-1].append(blocks * BLOCK)
            seen |= {tuple(text[:end]) for end in range(BLOCK, len(text) + 1, BLOCK)}
    return found


def test_a_turn_finds_what_its_session_sent_before() -> None:
    assert hits([session([(1000, 0), (1300, 1000), (1310, 1300)])]) == [[0, 992, 1296]]


def test_sessions_of_a_group_share_its_front_alone() -> None:
    first = session([(1000, 0)], shared=320)
    second = session([(900, 320)], shared=320)
    stranger = session([(900, 320)], shared=320, group="other")
    assert hits([first, second, stranger]) == [[0], [320], [0]]


def test_a_turn_that_goes_back_leaves_the_rest_behind() -> None:
    """The third turn keeps 500 tokens, the fourth builds on the third."""
    assert hits([session([(1000, 0), (1300, 1000), (900, 500), (950, 900)])]) == [
        [0, 992, 496, 896]
    ]


@st.composite
def _sessions(draw: st.DrawFn) -> list[PlannedSession]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        shared = draw(st.sampled_from([0, 48, 100]))
        turns: list[tuple[int, int]] = []
        before = 0
        for _ in range(draw(st.integers(1, 5))):
            prefix = draw(st.integers(max(shared, before // 3), max(shared, before)))
            prompt = prefix + draw(st.integers(1, 200))
            turns.append((prompt, prefix if before else shared))
            before = prompt
        made.append(session(turns, shared, str(shared)))
    return made


@settings(max_examples=150, deadline=None)
@given(_sessions())
def test_cached_blocks_are_those_that_the_texts_share(sessions: list[PlannedSession]) -> None:
    assert hits(sessions) == by_text(sessions)


def test_a_scenario_gives_the_turns_that_locust_would_send() -> None:
    scenario = load(ROOT / "scenarios" / "smoke.yaml", {})
    demand = of_scenario(scenario, 3, chars_per_token=4.0, max_model_len=32_768)
    sent = Session(scenario, 1, Corpus(), 4.0, 32_768)
    for planned in demand.sessions[1].turns[:4]:
        turn = sent.next_turn()
        assert turn is not None
        assert planned.prompt_tokens == turn.planned_prompt_tokens
        assert planned.output_tokens == turn.output_tokens
        assert planned.wait_s == turn.wait_s
        sent.completed(turn, prompt_tokens=None, output_tokens=None, text=None)


def test_the_session_that_opens_a_run_has_its_groups_front_like_the_others() -> None:
    scenario = load(ROOT / "scenarios" / "smoke.yaml", {})
    demand = of_scenario(scenario, 3, chars_per_token=4.0, max_model_len=32_768)
    fronts = {one.shared_tokens for one in demand.sessions}
    assert len(fronts) == 1
    assert fronts.pop() > 0


def test_no_turn_is_no_demand() -> None:
    with pytest.raises(DemandError, match="no turn"):
        Demand("empty", (PlannedSession("g", 0, ()),))
