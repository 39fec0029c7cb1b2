"""The plan of sessions and the command that lists it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentload.scenario import Scenario
from agentload.workload import listing
from agentload.workload.plan import SessionPlan, hit_ratio, kv_pressure, plan_session
from agentload.workload.session import Session
from agentload.workload.turn import Turn

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def turn(index: int, prompt: int, prefix: int, *, wait_s: float = 0.0, output: int = 100) -> Turn:
    return Turn(
        session_id="s", parent_session_id=None, turn_index=index, turn_class="tool",
        wait_kind="tool", wait_s=wait_s, keep_messages=0, append=(), append_chars=1,
        output_tokens=output, planned_prompt_tokens=prompt, planned_prefix_tokens=prefix,
    )  # fmt: skip


def plan(name: str, *turns: Turn, children: tuple[SessionPlan, ...] = ()) -> SessionPlan:
    return SessionPlan(name, None, "warm", turns, children, False)


def test_the_hit_ratio_is_tokens_of_whole_blocks() -> None:
    # 1,000 of 1,010 are 62 blocks = 992; an identical prompt of 32 gives one block, not two
    assert hit_ratio([turn(0, 1010, 1000), turn(1, 32, 32)], 16) == (992 + 16) / 1042
    assert hit_ratio([], 16) is None


def test_the_pressure_counts_what_sessions_share_once() -> None:
    plans = [plan("a", turn(0, 1000, 200), turn(1, 1200, 1000)), plan("b", turn(0, 2000, 200))]
    # a: mean of 1,100 and 1,300 less 200 = 1,000; b: 2,100 - 200 = 1,900
    expected = (10 * 1450 + 200) / (100 * 16)
    assert kv_pressure(plans, 10, 100, 16) == pytest.approx(expected)
    assert kv_pressure([], 10, 100, 16) is None


def test_the_duration_has_the_slowest_child_of_every_join() -> None:
    fast, slow = (plan(f"s.1.{n}", turn(0, 10, 0, output=n * 40)) for n in (1, 3))
    parent = plan(
        "s", turn(0, 10, 0, wait_s=2, output=80), turn(1, 20, 10, wait_s=5, output=40),
        children=(fast, slow),
    )  # fmt: skip
    # (2 + 1 + 2) + (5 + 1 + 1) + the slow child's (1 + 3)
    assert parent.duration_s(ttft_s=1.0, tokens_per_s=40.0) == pytest.approx(16.0)


def test_a_plan_stops_at_its_most_turns(
    make_scenario: Callable[..., Scenario], new_session: Callable[..., Session]
) -> None:
    short = plan_session(new_session(make_scenario()), 3)
    assert (len(short.turns), short.cut_short) == (3, True)
    whole = plan_session(new_session(make_scenario(window={"tokens": 7000})), 1000)
    assert not whole.cut_short


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = listing.main(argv)
    except SystemExit as error:
        code = int(error.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.slow
def test_the_listing_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    custom = str(SCENARIOS / "custom.yaml")
    code, out, err = run(
        capsys, custom, "--seed", "5", "--count", "6", "--json", "--blocks", "2000"
    )
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert [s["session_id"] for s in listed["sessions"]] == [f"s5-00000{i}" for i in range(6)]
    turns = [t for s in listed["sessions"] for t in s["turns"]]
    turns += [t for s in listed["sessions"] for c in s["children"] for t in c["turns"]]
    assert listed["summary"]["turns"] == len(turns)
    assert {"wait_kind", "planned_prompt_tokens", "output_tokens", "turn_class"} <= set(turns[0])
    assert 0 < listed["summary"]["kv_pressure"] < 5
    assert 0 < listed["summary"]["hit_ratio_before_eviction"] < 1
    assert (
        run(capsys, custom, "--seed", "5", "--count", "6", "--json", "--blocks", "2000")[1] == out
    )


@pytest.mark.slow
def test_the_listing_warns_of_a_run_shorter_than_its_sessions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    smoke = str(SCENARIOS / "smoke.yaml")
    code, out, _ = run(capsys, smoke, "--count", "3")
    assert code == 0
    assert "most sessions will not reach their last turn" in out
    _, out, _ = run(capsys, smoke, "--count", "3", "--tokens-per-s", "4000", "--ttft-s", "0.01",
                    "--set", "window.tokens=2048")  # fmt: skip
    assert "warning: -" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nowhere.yaml",), "No such file"),
        (("{smoke}", "--set", "prefix.tools=1"), "prefix.tools"),
        (("{smoke}", "--set", "seed"), "key.path=value"),
        (("{smoke}", "--max-model-len", "1024"), "context_scale to"),
        (("{smoke}", "--count", "0"), "1 or more"),
        (("{smoke}", "--ttft-s", "nan"), "above 0"),
    ],
)
def test_bad_input_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str
) -> None:
    words = [word.format(smoke=SCENARIOS / "smoke.yaml") for word in argv]
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert said in err


def test_a_listing_holds_no_text(
    make_scenario: Callable[..., Scenario], new_session: Callable[..., Any]
) -> None:
    bare = listing._as_json(plan_session(new_session(make_scenario()), 2))
    assert "append" not in bare["turns"][0]
    json.dumps(bare)
