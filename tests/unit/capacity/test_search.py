"""The order in which settings are tried, on servers whose capacity is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from agentload.capacity.plan.demand import Demand, PlannedSession, PlannedTurn
from agentload.capacity.plan.fleet import Played
from agentload.capacity.plan.planning import Question, make_plan
from agentload.capacity.plan.search import (
    Bench,
    Hardware,
    Setting,
    best_setting,
    most_users,
    replicas_for,
    spread,
    with_confidence,
)
from agentload.capacity.plan.slo import Target
from agentload.scenario.running import Slo
from agentload.sim.core import Histogram
from agentload.sim.profiles import load_profile

DEMAND = Demand("made", (PlannedSession("g", 0, (PlannedTurn("tool", 1000, 0, 100, 1.0),)),))
TARGET = Target({"tool": Slo(ttft_s=1.0)})


def hardware(name: str = "H100-80G", price: float | None = None) -> Hardware:
    profile = load_profile(name, "Qwen2.5-7B", max_model_len=131_072)
    return Hardware(name, 1, profile.engine_config(), profile.cost_file, price)


class KnownBench(Bench):
    """Servers that carry what `carries(setting)` says; draw number n carries a tenth of n less."""

    carries: Callable[[Setting], int]

    def _one(self, setting: Setting, users: int, number: int) -> tuple[Played, bool]:
        self.simulations += 1
        most = KnownBench.carries(setting) * (1 - number / 20 if number else 1)
        return Played((), Histogram(), 1.0, 0, 0, 1), users <= most


def bench(carries: Callable[[Setting], int]) -> Bench:
    KnownBench.carries = staticmethod(carries)  # type: ignore[assignment]
    return KnownBench(DEMAND, TARGET, 0, 100, lambda _: None)


@pytest.mark.parametrize("known", [0, 1, 2, 5, 9, 10, 11, 63, 1000])
def test_the_most_sessions_are_found_within_three_percent(known: int) -> None:
    found = most_users(bench(lambda _: known), Setting.default(hardware(), "sticky"))
    assert known - max(0, known // 32) <= found <= known


def test_the_best_of_each_knob_is_kept_for_the_next() -> None:
    def carries(setting: Setting) -> int:
        base = 12 if setting.long_prefill_token_threshold == 1024 else 6
        return base + 8 * (setting.max_num_batched_tokens == 4096)

    found = best_setting(bench(carries), hardware(), "sticky")
    assert found.best.long_prefill_token_threshold == 1024
    assert found.best.max_num_batched_tokens == 4096
    assert found.users == 20
    assert found.best.max_num_seqs == 32


def test_sequences_stay_as_they_are_where_fewer_cost_sessions() -> None:
    def carries(setting: Setting) -> int:
        return 10 if setting.max_num_seqs >= 1024 else 5

    assert best_setting(bench(carries), hardware(), "sticky").best.max_num_seqs == 1024


def test_without_chunked_prefill_no_threshold_is_tried() -> None:
    whole = replace(hardware().config, enable_chunked_prefill=False, max_num_batched_tokens=131_072)
    kind = replace(hardware(), config=whole)
    found = best_setting(bench(lambda _: 4), kind, "sticky")
    assert {s.long_prefill_token_threshold for s, _ in found.looked_at} == {0}
    assert {s.max_num_batched_tokens for s, _ in found.looked_at} == {131_072}


def test_fewer_sessions_are_planned_until_enough_draws_carry_them() -> None:
    """Draw n of 10 carries 100 x (1 - n / 20): nine of ten carry 55, eight of ten 60."""
    known = bench(lambda _: 100)
    found = best_setting(known, hardware(), "sticky")
    sure = [t.users for t in with_confidence(known, found, 10, 0.9) if t.p_meets >= 0.9]
    assert 52 <= max(sure) <= 55


def test_when_no_draw_count_is_enough_nothing_is_promised() -> None:
    known = bench(lambda _: 0)
    found = best_setting(known, hardware(), "sticky")
    assert found.users == 0
    assert with_confidence(known, found, 10, 0.9) == []


@pytest.mark.parametrize(
    ("sessions", "each", "replicas"), [(1, 9, 1), (9, 9, 1), (10, 9, 2), (1_000_000, 9, 111_112)]
)
def test_replicas_hold_all_sessions(sessions: int, each: int, replicas: int) -> None:
    assert replicas_for(sessions, each) == replicas


def test_the_middle_of_draws_is_interpolated() -> None:
    assert spread([float(n) for n in range(101)]) == (50.0, 5.0, 95.0)


def fast(turns: int = 3) -> Demand:
    """Small sessions that a simulation plays in milliseconds."""
    made = [PlannedTurn("cold", 2000, 0, 20, 0.0)]
    for n in range(1, turns):
        made.append(PlannedTurn("tool", 2000 + 300 * n, 2000 + 300 * (n - 1), 20, 1.0))
    return Demand("fast", (PlannedSession("g", 0, tuple(made)),))


def small(price: float | None = None) -> Hardware:
    """A card in whose cache six such sessions fit."""
    kind = hardware(price=price)
    return replace(kind, config=replace(kind.config, num_blocks=1000, max_model_len=8000))


def question(sessions: int, wanted: float = 0.75) -> Question:
    return Question(sessions, None, wanted, 4, "sticky", 0)


def test_the_cheapest_that_is_sure_enough_is_taken() -> None:
    """Of two cards that differ in price alone the cheap one; the dear one is still listed."""
    cheap = small(price=1.0)
    dear = replace(cheap, name="dear", gpu_price=9.0)
    target = Target({"tool": Slo(ttft_s=0.5)}, 0.95)
    plan = make_plan(question(40), fast(), target, [dear, cheap], least_turns=30)
    assert plan.best is not None
    assert plan.best.setting.hardware is cheap
    assert plan.best.replicas * plan.best.sessions_per_replica >= 40
    assert plan.best.cost_per_hour == plan.best.replicas
    assert {o.setting.hardware.name for o in plan.options} == {"dear", "H100-80G"}
    assert [o.rank for o in plan.front] == sorted(o.rank for o in plan.front)
    assert all(a.p_meets < b.p_meets for a, b in zip(plan.front, plan.front[1:], strict=False))


def test_what_cannot_be_met_is_said_with_what_came_nearest() -> None:
    plan = make_plan(
        question(4), fast(), Target({"tool": Slo(ttft_s=1e-6)}), [small()], least_turns=30
    )
    assert plan.best is None
    assert [o.p_meets for o in plan.options] == [0.0]
    assert plan.options[0].good_shares == {"tool": 0.0}
