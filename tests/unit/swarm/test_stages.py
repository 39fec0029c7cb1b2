"""Stages as arithmetic."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from agentload.scenario.running import Stage
from agentload.swarm.stages import Step, plan_of_flags, plan_of_stages

PLAN = plan_of_stages(
    [
        Stage(name="settle", duration_s=60, users=8, ramp_s=40, measured=False),
        Stage(name="steady", duration_s=600, users=8),
        Stage(name="peak", duration_s=120, users=20, ramp_s=6),
        Stage(name="down", duration_s=30, users=5, ramp_s=3, measured=False),
    ]
)


@pytest.mark.parametrize(
    ("at_s", "name", "users"),
    [
        (-5, "settle", 8),
        (0, "settle", 8),
        (59.999, "settle", 8),
        (60, "steady", 8),
        (660, "peak", 20),
        (809.9, "down", 5),
        (810, None, None),
    ],
)
def test_each_moment_has_its_stage(at_s: float, name: str | None, users: int | None) -> None:
    step = PLAN.at(at_s)
    assert (step and step.name) == name
    assert (step and step.users) == users


def test_turns_are_labelled_with_warm_up_before_and_the_last_stage_after() -> None:
    assert PLAN.name_at(-0.001) == "warm_up"
    assert PLAN.name_at(60) == "steady"
    assert PLAN.name_at(10_000) == "down"


def test_the_rate_reaches_the_users_within_the_ramp() -> None:
    assert [step.rate for step in PLAN.steps] == [8 / 40, 100.0, 12 / 6, 15 / 3]


def test_the_measured_window_spans_the_measured_stages() -> None:
    assert PLAN.measured_window_s() == (60, 780)
    assert PLAN.planned_s == 810
    none_measured = plan_of_stages([Stage(name="a", duration_s=1, users=1, measured=False)])
    assert none_measured.measured_window_s() == (None, None)


def test_users_that_were_warmed_begin_spread_over_the_first_ramp() -> None:
    assert [PLAN.first_start_s(user) for user in (0, 1, 7)] == [0, 5, 35]
    assert PLAN.first_start_s(8) == 0.0


def test_flags_are_one_stage_that_may_never_end() -> None:
    endless = plan_of_flags(10, 2.0, None)
    assert endless.planned_s is None
    assert endless.at(1e9) == Step("run", 0.0, math.inf, 10, 0, 5.0, True)
    assert endless.steps[0].rate == 2.0
    assert endless.measured_window_s() == (0.0, None)
    timed = plan_of_flags(10, 2.0, 3)
    assert timed.planned_s == 3.0
    assert timed.steps[0].ramp_s == 3.0  # the ramp cannot outlast the run
    assert timed.at(3.0) is None


def test_the_manifest_has_no_infinite_number() -> None:
    assert json.loads(json.dumps(plan_of_flags(1, 1.0, None).as_json(), allow_nan=False)) == [
        {**asdict(plan_of_flags(1, 1.0, None).steps[0]), "ends_s": None}
    ]
