"""Which turns are good, and when a class has enough of them."""

from __future__ import annotations

import pytest

from agentload.capacity.plan.fleet import Played, SeenTurn
from agentload.capacity.plan.slo import SloError, Target, parse_slos
from agentload.scenario.running import Slo
from agentload.sim.core import Histogram


def played(*turns: SeenTurn, gap_s: float = 0.02) -> Played:
    itl = Histogram()
    itl.add(gap_s, 1000)
    return Played(turns, itl, 100.0, 1000, 0, 1)


def turn(name: str = "tool", ttft_s: float = 0.3, tpot_s: float | None = 0.02) -> SeenTurn:
    return SeenTurn(name, ttft_s, tpot_s, ttft_s + 1.0, 1000, 900)


LIMITS = {"tool": Slo(ttft_s=1.0, tpot_s=0.05), "cold": Slo(ttft_s=10.0)}


def test_a_turn_is_good_when_it_meets_all_limits_of_its_class() -> None:
    seen = played(turn(), turn(ttft_s=1.1), turn(tpot_s=0.06), turn(tpot_s=None), turn("cold", 9.0))
    assert Target(LIMITS).good_shares(seen) == {"tool": 0.5, "cold": 1.0}


def test_a_turn_that_never_ended_is_bad() -> None:
    lost = SeenTurn("tool", 0.5, None, None, 1000, 0)
    assert Target(LIMITS).good_shares(played(lost)) == {"tool": 0.0}


def test_a_limit_on_gaps_is_held_against_all_gaps() -> None:
    limits = {"tool": Slo(itl_p99_s=0.03)}
    assert Target(limits).met(played(turn()))
    assert not Target(limits).met(played(turn(), gap_s=0.04))


@pytest.mark.parametrize(("bad", "met"), [(0, True), (10, True), (11, False)])
def test_a_class_needs_its_share(bad: int, met: bool) -> None:
    turns = [turn(ttft_s=5.0)] * bad + [turn()] * (1000 - bad)
    assert Target(LIMITS, 0.99).met(played(*turns)) is met


def test_of_few_turns_one_may_be_bad_and_no_more() -> None:
    some = [turn("cold")] * 20
    assert Target(LIMITS, 0.99).met(played(*some, turn("cold", 11.0)))
    assert not Target(LIMITS, 0.99).met(played(*some, turn("cold", 11.0), turn("cold", 11.0)))


def test_limits_can_be_put_over_those_of_the_scenario() -> None:
    found = parse_slos(["tool.ttft_s=3", "user.e2e_s=20"], LIMITS)
    assert found["tool"] == Slo(ttft_s=3.0, tpot_s=0.05)
    assert found["user"] == Slo(e2e_s=20.0)
    assert found["cold"] == LIMITS["cold"]


def test_every_faulty_limit_is_named() -> None:
    texts = ["tool.ttft=3", "robot.ttft_s=3", "tool.ttft_s=soon", "tool.ttft_s=-1", "tool.ttft_s"]
    with pytest.raises(SloError) as error:
        parse_slos(texts, {})
    for text in texts:
        assert f"--slo {text}:" in str(error.value)


def test_without_limits_there_is_nothing_to_plan_for() -> None:
    with pytest.raises(SloError, match="no limit to plan for"):
        Target({"tool": Slo()})
