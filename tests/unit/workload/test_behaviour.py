"""Compaction, breaks, aborts, subagents, dynamic prefixes, the end of the window."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from agentload.scenario import Scenario
from agentload.workload.plan import cached_tokens
from agentload.workload.session import Session
from agentload.workload.window import misfit, room_left, window_rule

Make = Callable[..., Session]
MakeScenario = Callable[..., Scenario]

COMPACTION: dict[str, Any] = {
    "trigger_share": 0.5,
    "summary_tokens": {"dist": "constant", "value": 300},
    "rebuild_tokens": {"dist": "constant", "value": 4000},
}
CALLS = {"calls_per_user_turn": {"dist": "choice", "values": [1, 2, 5], "weights": [1, 1, 1]}}


def common_tokens(t: Any, earlier: int, later: int) -> float:
    """Tokens of the text with which two prompts begin, by the target's own count."""
    a, b = t.prompts[earlier], t.prompts[later]
    chars = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    return t.tokens([("", part) for part in b[:chars].split("\x00")])


# -- E01: a session reaches max_model_len -------------------------------------------------------


def e01(at_limit: str) -> dict[str, Any]:
    """System 2,000, user 1,500 a turn, max_tokens 1,024, max_model_len 16,384."""
    return {
        "window": {"tokens": None, "end_share": 1.0, "at_limit": at_limit},
        "prefix": {"tools_tokens": 0, "system_tokens": 2000},
        "start": {
            "mix": {"warm": 0.0, "fresh": 1.0},
            "fresh_tokens": {"dist": "constant", "value": 1500},
            "message_chars": {"dist": "constant", "value": 1000},
        },
        "turns": {
            "append_chars": {"dist": "constant", "value": 6000},
            "output_tokens": {"dist": "constant", "value": 1024},
            "assistant_history": "live",
        },
    }


def grow(t: Any) -> tuple[list[int], Any]:
    """Report the case's prompt sizes, answer 500 tokens; (prompts sent, the turn after them)."""
    sent = []
    for prompt_tokens in (3500, 5500, 7500, 9500, 11500, 13500):
        turn = t.session.next_turn()
        if turn is None:
            return sent, None
        sent.append(prompt_tokens)
        t.session.completed(turn, prompt_tokens=prompt_tokens, output_tokens=500, text="abcd" * 500)
    return sent, t.session.next_turn()


def test_a_session_ends_before_the_server_would_refuse(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario(**e01("end")), max_model_len=16_384))
    sent, following = grow(t)
    assert sent == [3500, 5500, 7500, 9500, 11500, 13500]
    assert following is None


def test_a_session_lowers_its_output_to_the_room_left(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario(**e01("lower_output")), max_model_len=16_384))
    _, following = grow(t)
    assert room_left(16_384, 15_500) == 884
    assert following.planned_prompt_tokens == pytest.approx(15_500, rel=0.02)
    room = room_left(16_384, following.planned_prompt_tokens)
    assert 0.9 * room <= following.output_tokens <= room  # kept back: 1 % of what is estimated


def test_a_session_compacts_at_the_limit(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    changes = {**e01("compact"), "compaction": {**COMPACTION, "trigger_share": 1.0}}
    t = target(new_session(make_scenario(**changes), max_model_len=16_384))
    _, summary = grow(t)
    assert summary.turn_class == "tool"
    assert summary.output_tokens == 300
    t.session.completed(summary, prompt_tokens=14_200, output_tokens=300, text="s" * 1200)
    rebuild = t.session.next_turn()
    assert rebuild.turn_class == "rebuild"
    assert rebuild.planned_prompt_tokens < 5000


@pytest.mark.parametrize(("at_limit", "goes_on"), [("end", False), ("compact", True)])
def test_an_overflow_the_session_did_not_foresee(
    make_scenario: MakeScenario, new_session: Make, target: Any, at_limit: str, goes_on: bool
) -> None:
    scenario = make_scenario(window={"at_limit": at_limit}, compaction=COMPACTION)
    t = target(new_session(scenario))
    t.run(1)
    turn = t.session.next_turn()
    t.receive(turn)
    assert t.session.failed(turn, "context_overflow") is goes_on
    following = t.session.next_turn()
    assert (following is not None) is goes_on
    if goes_on:
        assert following.turn_class == "rebuild"
        assert not t.session.failed(following, "context_overflow")


def test_sessions_end_at_their_share_of_the_window(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(window={"tokens": 8000, "end_share": 0.9})
    for index in range(5):
        t = target(new_session(scenario, index))
        t.run(500, report=False)
        assert len(t.turns) < 500
        assert max(turn.planned_prompt_tokens for turn in t.turns) <= 7200


def test_what_does_not_fit_is_told_with_the_mend(make_scenario: MakeScenario) -> None:
    scenario = make_scenario()
    assert misfit(scenario, None) is None
    assert misfit(scenario, 20_000) is None
    text = misfit(scenario, 4096)
    assert text is not None
    assert "6,000" in text
    assert "4,096" in text
    mended = float(text.split("context_scale to ")[1].split()[0])
    assert misfit(make_scenario(context_scale=mended), 4096) is None


def test_the_window_is_the_smaller_of_scenario_and_server(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(context_scale=0.5)
    assert window_rule(scenario, None).window == 10_000
    assert window_rule(scenario, 8000).window == 8000
    assert window_rule(make_scenario(window={"tokens": None}), 8000).window == 8000


# -- E03: changing text at the front ------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference_at", "cached"), [(12, 0), (4000, 4000), (4096, 4080), (15, 0), (16, 16)]
)
def test_the_cache_gives_whole_blocks_before_the_first_difference(
    difference_at: int, cached: int
) -> None:
    assert cached_tokens(4096, difference_at, 16) == cached


@pytest.mark.parametrize("dynamic", ["none", "head", "system_tail", "tools_permuted"])
def test_a_dynamic_prefix_keeps_what_stands_before_it(
    make_scenario: MakeScenario, new_session: Make, target: Any, dynamic: str
) -> None:
    t = target(new_session(make_scenario(prefix={"dynamic": dynamic})))
    t.run(10)
    for i in range(1, 10):
        shared, turn = common_tokens(t, i - 1, i), t.turns[i]
        system = t.tokens(t.history[:1])
        if dynamic == "none":
            assert turn.planned_prefix_tokens == t.reported[i - 1]
            continue
        assert turn.keep_messages == 0
        assert turn.append_chars < len(t.prompts[i]) / 2  # what is only sent again is not new
        if dynamic == "system_tail":
            assert shared == pytest.approx(system, rel=0.02)
            assert turn.planned_prefix_tokens == pytest.approx(shared, rel=0.25)
        else:
            assert turn.planned_prefix_tokens == 0
            assert shared < {"head": 20, "tools_permuted": 0.6 * system}[dynamic]
    if dynamic == "tools_permuted":
        firsts = {prompt.split("\n")[0] for prompt in t.prompts}
        assert len(firsts) > 2


def test_tools_cannot_be_permuted_when_there_are_too_few(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    scenario = make_scenario(prefix={"dynamic": "tools_permuted", "tools_tokens": 200})
    with pytest.raises(ValueError, match="tool definitions fit"):
        new_session(scenario)


# -- compaction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", ["none", "system_tail"])
def test_a_compaction_is_a_summary_call_then_a_rebuild_behind_the_prefix(
    make_scenario: MakeScenario, new_session: Make, target: Any, dynamic: str
) -> None:
    scenario = make_scenario(compaction=COMPACTION, prefix={"dynamic": dynamic})
    t = target(new_session(scenario))
    t.run(60, report=False)
    rebuilds = [i for i, turn in enumerate(t.turns) if turn.turn_class == "rebuild"]
    assert len(rebuilds) >= 2
    for i in rebuilds:
        before, summary, rebuild = t.turns[i - 2 : i + 1]
        assert before.planned_prompt_tokens + before.output_tokens < 10_000 * 1.2
        assert summary.planned_prompt_tokens > 10_000 * 0.98
        assert summary.output_tokens == 300
        assert rebuild.wait_s == 0.0
        assert rebuild.planned_prompt_tokens == pytest.approx(4000, rel=0.02)
        assert rebuild.planned_prefix_tokens == pytest.approx(1500, abs=10)
        assert common_tokens(t, i - 1, i) == pytest.approx(t.tokens(t.history[:1]), rel=0.02)
    salts = {t.prompts[i].split("Session ")[1][:16] for i in (0, *rebuilds)}
    assert len(salts) == len(rebuilds) + 1


def test_a_rebuild_that_fails_is_tried_again(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario(compaction=COMPACTION)))
    while True:
        turn = t.session.next_turn()
        t.receive(turn)
        if turn.turn_class == "rebuild":
            break
        t.answer(turn, report=False)
    assert t.session.failed(turn, "connection_reset")
    again = t.session.next_turn()
    assert again.turn_class == "rebuild"
    t.receive(again)
    assert t.history[1][1].startswith("Session ")


# -- prefix breaks ------------------------------------------------------------------------------


@pytest.mark.parametrize("rewind", [True, False])
def test_breaks_keep_their_share_of_the_prompt(
    make_scenario: MakeScenario, new_session: Make, target: Any, rewind: bool
) -> None:
    breaks = {
        "probability": 0.3,
        "keep_share": {"dist": "uniform", "min": 0.2, "max": 0.6},
        "rewind_share": 1.0 if rewind else 0.0,
    }
    found = []
    for index in range(8):
        t = target(new_session(make_scenario(prefix_breaks=breaks), index))
        t.run(25)
        for i, turn in enumerate(t.turns):
            if turn.turn_class != "rebuild":
                continue
            before = t.turns[i - 1].planned_prompt_tokens
            if turn.keep_messages > 1:  # else the prefix alone, which no break takes away
                found.append(turn.planned_prefix_tokens / before)
            shared = common_tokens(t, i - 1, i)
            assert turn.planned_prefix_tokens == pytest.approx(shared, rel=0.25, abs=100)
            if not rewind:
                assert turn.planned_prompt_tokens >= 0.9 * before
    assert len(found) > 10
    # cut at a message, so below the draw by half a message on average
    assert 0.2 < sum(found) / len(found) < 0.48
    assert max(found) <= 0.7  # 0.6 by plan, more or less by the target's own count


def test_the_text_after_a_break_to_the_prefix_begins_with_a_salt(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    breaks = {
        "probability": 1.0,
        "keep_share": {"dist": "constant", "value": 0.0},
        "rewind_share": 1.0,
    }
    t = target(new_session(make_scenario(prefix_breaks=breaks)))
    t.run(3)
    assert [turn.keep_messages for turn in t.turns] == [0, 1, 1]
    assert all("\x01Session " in prompt for prompt in t.prompts)


# -- user turns, aborts, waits ------------------------------------------------------------------


def test_user_turns_come_after_their_calls_and_end_the_session(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    turns = {**CALLS, "user_turns_per_session": {"dist": "constant", "value": 4}}
    waits = {"human": {"dist": "constant", "value": 50}}
    scenario = make_scenario(turns=turns, waits=waits, window={"tokens": 100_000})
    lengths = []
    for index in range(20):
        t = target(new_session(scenario, index))
        t.run(100)
        classes = [turn.turn_class for turn in t.turns]
        assert classes[0] == "cold"
        assert classes.count("user") == 3
        starts = [0, *(i for i, c in enumerate(classes) if c == "user"), len(classes)]
        lengths += [b - a for a, b in pairwise(starts)]
        for turn in t.turns:
            assert (turn.wait_kind == "human") == (turn.turn_class == "user")
            assert (turn.wait_s == 50) == (turn.turn_class == "user")
    assert set(lengths) == {1, 2, 5}
    assert sum(lengths) / len(lengths) == pytest.approx(8 / 3, rel=0.2)


def test_without_human_waits_a_user_turn_waits_as_a_tool_turn(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario(turns=CALLS)))
    t.run(15)
    user = [turn for turn in t.turns if turn.turn_class == "user"]
    assert user
    assert {turn.wait_kind for turn in user} == {"tool"}


def test_an_abort_cuts_the_answer_and_ends_the_user_turn(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(
        turns={
            "calls_per_user_turn": {"dist": "constant", "value": 4},
            "output_tokens": {"dist": "constant", "value": 200},
        },
        content={"answers": {"prose": 1}},
        aborts={
            "probability": 0.5,
            "output_share": {"dist": "constant", "value": 0.25},
            "stream_tokens_per_s": 40,
        },
        window={"tokens": 100_000},
    )
    user_turns = aborts = 0
    cut, whole = set(), set()
    for index in range(12):
        t = target(new_session(scenario, index))
        while len(t.turns) < 40 and (turn := t.session.next_turn()) is not None:
            if t.turns and t.turns[-1].abort_after_s is not None:
                assert turn.turn_class == "user"
            user_turns += turn.turn_class == "user"
            t.receive(turn)
            t.answer(turn)
            if turn.abort_after_s is not None:
                aborts += 1
                assert turn.abort_after_s == pytest.approx(0.25 * 200 / 40)
                cut.add(len(t.history[-1][1]))
            else:
                whole.add(len(t.history[-1][1]))
    assert aborts / user_turns == pytest.approx(0.5, abs=0.12)
    assert cut == {round(size / 4) for size in whole}


def test_parallel_tool_calls_wait_for_the_slowest(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    def mean_wait(calls: int) -> float:
        turns = {"parallel_tool_calls": {"dist": "constant", "value": calls}}
        waits = []
        for index in range(12):
            t = target(new_session(make_scenario(turns=turns), index))
            waits += [turn.wait_s for turn in t.run(20)[1:]]
        return sum(waits) / len(waits)

    # uniform 0.1-2.0: mean 1.05; the largest of four: 0.1 + 1.9 * 4/5
    assert mean_wait(1) == pytest.approx(1.05, abs=0.15)
    assert mean_wait(4) == pytest.approx(1.62, abs=0.15)


def test_thinking_lengthens_the_output_and_stays_out_of_the_history(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    reasoning = {"share": 0.4, "output_factor": 2.0}
    changes = {
        "turns": {"output_tokens": {"dist": "constant", "value": 100}, "reasoning": reasoning},
        "content": {"answers": {"prose": 1}},
    }
    outputs, answers = [], set()
    for index in range(10):
        t = target(new_session(make_scenario(**changes), index))
        outputs += [turn.output_tokens for turn in t.run(25)]
        answers |= {len(text) for _, text in t.history[-1:]}
    assert set(outputs) == {100, 200}
    assert outputs.count(200) / len(outputs) == pytest.approx(0.4, abs=0.08)
    assert len(answers) == 1


# -- subagents, interference --------------------------------------------------------------------


def test_children_have_their_own_prefix_and_report_to_the_parent(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(
        turns={
            "calls_per_user_turn": {"dist": "constant", "value": 2},
            "append_chars": {"dist": "constant", "value": 100},
        },
        window={"tokens": 100_000},
        subagents={
            "probability": 0.6,
            "fanout": {"dist": "choice", "values": [1, 3], "weights": [1, 1]},
            "prefix_tokens": 500,
            "start_tokens": {"dist": "constant", "value": 1200},
            "calls": {"dist": "constant", "value": 3},
            "report_chars": {"dist": "constant", "value": 700},
        },
    )
    parent = target(new_session(scenario, 5))
    systems, ids, user_turns, spawning = set(), [], 0, 0
    for _ in range(60):
        turn = parent.session.next_turn()
        expected = 100 + 700 * (len(parent.turns[-1].spawns) if parent.turns else 0)
        assert turn.turn_index == 0 or turn.append_chars == expected
        assert not turn.spawns or turn.turn_class == "user"
        user_turns += turn.turn_class == "user"
        spawning += bool(turn.spawns)
        parent.receive(turn)
        parent.answer(turn)
        for plan in turn.spawns:
            child = target(parent.session.child(plan))
            child.run(10)
            assert [t.turn_class for t in child.turns] == ["child"] * 3
            assert {t.parent_session_id for t in child.turns} == {"s7-000005"}
            assert child.turns[0].planned_prompt_tokens == pytest.approx(1200, rel=0.02)
            assert child.turns[0].planned_prefix_tokens == 500
            assert not any(t.spawns for t in child.turns)
            systems.add(child.history[0][1])
            ids.append(child.session.session_id)
    assert spawning / user_turns == pytest.approx(0.6, abs=0.2)
    assert len(systems) == 1
    assert parent.history[0][1] not in systems
    assert len(set(ids)) == len(ids) > 10
    assert all(name.startswith("s7-000005.") for name in ids)


def test_interference_is_one_turn_no_cache_knows(
    make_scenario: MakeScenario, corpus: Any, target: Any
) -> None:
    scenario = make_scenario(
        interference={
            "every_s": 20,
            "burst": 2,
            "prompt_tokens": {"dist": "constant", "value": 3000},
            "output_tokens": {"dist": "constant", "value": 5},
        }
    )
    prompts = []
    for number in range(3):
        t = target(Session.one_shot(scenario, number, corpus, 4.0, None))
        (turn,) = t.run(5)
        assert turn.turn_class == "cold"
        assert turn.output_tokens == 5
        assert turn.planned_prefix_tokens == 0
        assert turn.planned_prompt_tokens == pytest.approx(3000, rel=0.02)
        prompts.append(t.prompts[0])
    assert len({prompt[:40] for prompt in prompts}) == 3


def test_start_states_are_drawn_in_their_shares(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    scenario = make_scenario(
        start={
            "mix": {"warm": 0.7, "fresh": 0.2, "resumed_cold": 0.1},
            "fresh_tokens": {"dist": "constant", "value": 300},
        }
    )
    states: dict[str, list[int]] = {}
    for index in range(400):
        session = new_session(scenario, index)
        states.setdefault(session.start_state, []).append(index)
    shares = {state: len(found) / 400 for state, found in states.items()}
    expected = {"warm": 0.7, "fresh": 0.2, "resumed_cold": 0.1}
    assert shares == pytest.approx(expected, abs=0.06)
    fresh = new_session(scenario, states["fresh"][0]).next_turn()
    cold = new_session(scenario, states["resumed_cold"][0]).next_turn()
    assert fresh is not None
    assert cold is not None
    assert fresh.planned_prompt_tokens == pytest.approx(1800, rel=0.02)
    assert 4000 * 0.98 <= cold.planned_prompt_tokens <= 6000 * 1.02


# -- raw completions cut inside words -----------------------------------------------------------


def test_appends_end_inside_a_word_that_the_answer_goes_on_with(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(wire="completions", content={"cut": "inside_word"})
    t = target(new_session(scenario))
    t.run(15)
    ends = [
        (user[-1] + answer[0]).isalnum()
        for (role, user), (_, answer) in zip(t.history[3:], t.history[4:], strict=False)
        if role == "user"
    ]
    assert sum(ends[-14:]) >= 13
