"""A run that ends before its sessions do is named before it begins (case E07)."""

from pathlib import Path

import pytest

from agentload.scenario import Scenario, load
from agentload.workload.content import Corpus
from agentload.workload.reach import planned_warning, sessions_end
from agentload.workload.traces.replay import session_source

SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"
TWENTY_TURNS = {
    "turns.calls_per_user_turn": {"dist": "constant", "value": 1},
    "turns.user_turns_per_session": {"dist": "constant", "value": 20},
    "turns.output_tokens": {"dist": "constant", "value": 40},
    "waits.tool": {"dist": "constant", "value": 1.0},
}
CORPUS = Corpus()
# 20 turns of a second to the first token and one for 40 tokens at 40/s; 19 waits of a second.
SESSION_S = 59.0


def warning(scenario: Scenario, run_s: float | None, pace: float = 1.0) -> str | None:
    make = session_source(scenario, CORPUS, 4.0, None)
    return planned_warning(scenario, make, run_s, pace)


@pytest.mark.slow
def test_a_run_shorter_than_its_sessions_is_named() -> None:
    scenario = load(SMOKE, TWENTY_TURNS)
    assert sessions_end(scenario)
    said = warning(scenario, SESSION_S - 2)
    assert said is not None
    assert "shorter (57 s) than a session is likely to be (59 s)" in said
    assert warning(scenario, SESSION_S + 2) is None
    stopped = load(SMOKE, {**TWENTY_TURNS, "stop": {"after_s": 30.0}})
    assert "(30 s)" in str(warning(stopped, 600.0))


@pytest.mark.slow
def test_a_simulator_that_runs_faster_reaches_more() -> None:
    quick = {**TWENTY_TURNS, "waits.tool": {"dist": "constant", "value": 0.25}}
    scenario = load(SMOKE, quick)  # as `at_pace` makes it at four times real time
    assert warning(scenario, 16.0, pace=4.0) is None
    assert warning(scenario, 14.0, pace=4.0) is not None


def test_sessions_without_a_last_turn_have_none_to_reach() -> None:
    scenario = load(SMOKE)
    assert not sessions_end(scenario)
    assert warning(scenario, 1.0) is None
    assert warning(load(SMOKE, TWENTY_TURNS), None) is None, "a run without an end"
