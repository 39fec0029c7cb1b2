"""What a session promises about its turns, checked against a target that counts for itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agentload.scenario import Scenario
from agentload.workload.session import Session

Make = Callable[..., Session]
MakeScenario = Callable[..., Scenario]


def digest(session: Session, turns: int = 12) -> str:
    """Everything of a session's turns: text, waits, sizes, plans."""
    sha = hashlib.sha256()
    for _ in range(turns):
        turn = session.next_turn()
        if turn is None:
            break
        answer = session.completed(turn, prompt_tokens=None, output_tokens=None, text=None)
        for message in (*turn.append, *answer):
            sha.update(message.role.encode() + b"".join(bytes(p) for p in message.pieces))
        rest = [getattr(turn, name) for name in turn.__dataclass_fields__ if name != "append"]
        sha.update(repr(rest).encode())
    return sha.hexdigest()


def test_same_seed_same_turns_whoever_takes_the_index(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    scenario = make_scenario()
    alone = [digest(new_session(scenario, index)) for index in range(8)]
    dealt = {w + 4 * i: digest(new_session(scenario, w + 4 * i)) for w in range(4) for i in (1, 0)}
    assert [dealt[index] for index in range(8)] == alone
    assert len(set(alone)) == 8
    assert digest(new_session(make_scenario(seed=8))) != alone[0]


@pytest.mark.slow
def test_same_seed_same_turns_in_another_process(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    scenario = make_scenario()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_session import digest\n"
        "from agentload.scenario import Scenario; from agentload.workload.content import Corpus\n"
        "from agentload.workload.session import Session\n"
        "scenario = Scenario.model_validate_json(sys.argv[2])\n"
        "print(digest(Session(scenario, 3, Corpus(), 4.0, None)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__), scenario.model_dump_json()],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert out.strip() == digest(new_session(scenario, 3))


def test_a_report_of_the_server_changes_no_text_and_no_wait(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario()
    told, untold = target(new_session(scenario)), target(new_session(scenario))
    told.run(15)
    untold.run(15, report=False)
    assert told.prompts == untold.prompts
    assert [t.wait_s for t in told.turns] == [t.wait_s for t in untold.turns]
    plans = [t.planned_prompt_tokens for t in told.turns]
    assert plans != [t.planned_prompt_tokens for t in untold.turns]


FULL_SIZE: dict[str, Any] = {
    "window": {"tokens": 200_000},
    "prefix": {"tools_tokens": 12_000, "system_tokens": 3000},
    "start": {
        "warm_tokens": {"dist": "uniform", "min": 86_000, "max": 123_000},
        "message_chars": {"dist": "lognormal", "median": 6000, "sigma": 0.8, "min": 400},
    },
    "turns": {
        "append_chars": {
            "dist": "lognormal", "median": 1400, "sigma": 1.5, "min": 16, "max": 100_000,
        }
    },
}  # fmt: skip


def planning_errors(sessions: list[Session], target: Any, count: Any, overhead: int) -> list[float]:
    """|planned / reported - 1| of all turns but the first."""
    errors = []
    for session in sessions:
        t = target(session, count, overhead)
        t.run(25)
        pairs = zip(t.turns, t.reported, strict=True)
        errors += [abs(turn.planned_prompt_tokens / n - 1) for turn, n in pairs if turn.turn_index]
    return sorted(errors)


@pytest.mark.parametrize(("overhead", "chars"), [(0, 2), (3, 3), (7, 6)])
def test_planned_and_reported_prompt_agree_within_two_percent_after_the_first_turn(
    make_scenario: MakeScenario, new_session: Make, target: Any, overhead: int, chars: int
) -> None:
    """On targets of other ratios than planned with, which are also alike for every kind of text.

    In small sessions one long append can be most of the prompt, and the first one of a kind says
    what this kind's ratio is: there 95 % of the turns have to agree.
    """

    def count(text: str) -> int:
        return len(text) // chars + text.count("_")

    full = [new_session(make_scenario(**FULL_SIZE), index) for index in range(6)]
    errors = planning_errors(full, target, count, overhead)
    assert len(errors) > 100
    assert errors[-1] < 0.02
    small = [new_session(make_scenario(), index) for index in range(12)]
    errors = planning_errors(small, target, count, overhead)
    assert errors[round(0.95 * len(errors))] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base", "llama3", "qwen3"])
def test_planned_and_reported_prompt_agree_with_real_tokenizers(
    make_scenario: MakeScenario, new_session: Make, target: Any, vocabulary: str
) -> None:
    quicktok = pytest.importorskip("quicktok", reason="needs the extra `tokenizer`")
    encoding = quicktok.get_encoding(vocabulary)
    scenario = make_scenario(**FULL_SIZE)
    sessions = [new_session(scenario, index, chars_per_token=3.5) for index in range(3)]
    errors = planning_errors(sessions, target, lambda text: len(encoding.encode(text)), 4)
    assert len(errors) > 50
    assert errors[-1] < 0.02


def test_the_planned_prefix_is_the_prompt_before(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    """Of ordinary turns an endless cache holds just what the server counted in the last prompt."""
    t = target(new_session(make_scenario()))
    t.run(20)
    assert len(t.turns) == 20
    for turn, before in zip(t.turns[1:], t.reported, strict=False):
        assert turn.planned_prefix_tokens == before
    for later, earlier in zip(t.prompts[1:], t.prompts, strict=False):
        assert later.startswith(earlier)


def test_first_prompts_share_the_prefix_and_nothing_else(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario()
    firsts = []
    for index in range(6):
        t = target(new_session(scenario, index))
        t.run(1)
        firsts.append((t.history[0][1], t.history[1][1], t.turns[0]))
    assert len({system for system, _, _ in firsts}) == 1
    salts = {opening.split("\n")[0] for _, opening, _ in firsts}
    assert len(salts) == 6
    assert {len(salt) for salt in salts} == {len("Session ") + 16}
    assert [turn.planned_prefix_tokens for _, _, turn in firsts] == [0] + [1500] * 5
    assert {turn.turn_class for _, _, turn in firsts} == {"cold"}


def test_a_run_salt_changes_every_prompt_from_its_first_characters_and_no_size(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario()
    runs = [target(new_session(scenario, 2, run_salt=salt)) for salt in ("arm-a", "arm-b")]
    for t in runs:
        t.run(4)
    a, b = (t.history[0][1] for t in runs)
    assert a[:8] == b[:8] == "Run arm-"
    assert a[8] != b[8]
    assert a[9:] == b[9:]
    assert [t.append_chars for t in runs[0].turns] == [t.append_chars for t in runs[1].turns]


def test_context_scale_multiplies_contexts_and_prefix_only(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    full, half = (target(new_session(make_scenario(context_scale=s), 1)) for s in (1.0, 0.5))
    for t in (full, half):
        t.run(4)
    ratio = half.turns[0].planned_prompt_tokens / full.turns[0].planned_prompt_tokens
    assert ratio == pytest.approx(0.5, abs=0.01)
    assert half.turns[0].planned_prefix_tokens == full.turns[0].planned_prefix_tokens / 2
    assert [t.output_tokens for t in half.turns] == [t.output_tokens for t in full.turns]
    assert [t.append_chars for t in half.turns[1:]] == [t.append_chars for t in full.turns[1:]]
    assert [t.wait_s for t in half.turns] == [t.wait_s for t in full.turns]


def test_append_chars_are_the_characters_of_what_is_appended(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario()))
    for _ in range(12):
        turn = t.session.next_turn()
        before = [] if turn.turn_index == 0 else list(t.history)
        t.receive(turn)
        new = t.history[len(before) :]
        assert turn.append_chars == sum(len(text) for _, text in new)
        t.answer(turn)


def test_non_ascii_share_of_every_append(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(
        content={"non_ascii_share": 0.5},
        turns={"append_chars": {"dist": "constant", "value": 4000}},
    )
    t = target(new_session(scenario))
    t.run(6)
    for _, text in t.history[-2::-2][:5]:
        assert len(text) == 4000
        assert 0.25 < sum(not ch.isascii() for ch in text) / 4000 < 0.5  # some of it is Latin


def test_a_canned_answer_has_the_planned_length(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(
        turns={"output_tokens": {"dist": "constant", "value": 300}},
        content={"answers": {"prose": 1}},
    )
    t = target(new_session(scenario), lambda text: round(len(text) / 4.9))
    t.run(3)
    answer = t.history[-1][1]
    # 4 characters a token on the mix of the scenario are more than 4 on prose
    assert 300 * 4 < len(answer) < 300 * 6
    other = target(new_session(scenario))
    other.run(3, report=False)
    assert other.history[-1][1] == answer


def test_live_history_holds_the_models_own_text(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario(turns={"assistant_history": "live"})))
    turn = t.session.next_turn()
    t.receive(turn)
    said = 'said "so"\n\ud83d é ' + "and on and " * 2 * turn.output_tokens
    t.answer(turn, text=said)
    assert t.history[-1] == ("assistant", said.replace("\ud83d", "?"))
    following = t.session.next_turn()
    assert following.planned_prefix_tokens == t.reported[0] + turn.output_tokens


def test_live_history_counts_no_more_cached_tokens_than_the_text_has(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    """A server that thinks reports output tokens that never join the history."""
    t = target(new_session(make_scenario(turns={"assistant_history": "live"})))
    turn = t.session.next_turn()
    t.receive(turn)
    t.answer(turn, text="Done.")
    following = t.session.next_turn()
    assert turn.output_tokens > 20
    assert 0 < following.planned_prefix_tokens - t.reported[0] < 12


def test_a_failed_turn_leaves_no_trace_in_the_history(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    t = target(new_session(make_scenario()))
    t.run(3)
    history = list(t.history)
    lost = t.session.next_turn()
    t.receive(lost)
    assert t.session.failed(lost, "timeout_total")
    following = t.session.next_turn()
    assert following.keep_messages == len(history)
    assert following.turn_index == lost.turn_index + 1
    t.receive(following)
    assert t.history[: len(history)] == history
    assert following.planned_prompt_tokens == pytest.approx(t.reported[-1], rel=0.02)
    assert following.planned_prefix_tokens == t.reported[2]


def test_a_session_whose_first_turn_fails_is_over(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    session = new_session(make_scenario())
    turn = session.next_turn()
    assert turn is not None
    assert not session.failed(turn, "connect_error")
    assert session.next_turn() is None


def test_turns_out_of_order_are_a_mistake_of_the_caller(
    make_scenario: MakeScenario, new_session: Make
) -> None:
    session, other = new_session(make_scenario()), new_session(make_scenario(), 1)
    turn, foreign = session.next_turn(), other.next_turn()
    assert turn is not None
    assert foreign is not None
    with pytest.raises(RuntimeError, match="still open"):
        session.next_turn()
    with pytest.raises(RuntimeError, match="not the open one"):
        session.completed(foreign, prompt_tokens=1, output_tokens=1, text=None)


def test_groups_share_their_repository_text(
    make_scenario: MakeScenario, new_session: Make, target: Any
) -> None:
    scenario = make_scenario(prefix={"groups": 3, "group_tokens": 400, "group_zipf_alpha": 0.6})
    systems: dict[str, list[int]] = {}
    plans = []
    for index in range(30):
        t = target(new_session(scenario, index))
        t.run(1)
        systems.setdefault(t.history[0][1], []).append(index)
        plans.append(t.turns[0].planned_prefix_tokens)
    assert len(systems) == 3
    for indices in systems.values():
        assert plans[indices[0]] == (0 if indices[0] == 0 else 1500)
        assert {plans[index] for index in indices[1:]} == {1900}
    size = len(next(iter(systems)))
    assert len({system[: round(0.7 * size)] for system in systems}) == 1
