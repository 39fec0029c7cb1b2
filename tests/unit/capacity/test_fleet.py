"""What a simulated configuration says: against arithmetic, against published behaviour."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from agentload.capacity.plan.demand import Demand, PlannedSession, PlannedTurn
from agentload.capacity.plan.draws import CostDraw, at_speed, central, drawn
from agentload.capacity.plan.fleet import Load, percentile, play
from agentload.capacity.plan.routing import BOUND, ROUTINGS, seat_users
from agentload.capacity.plan.search import Bench, Hardware, Setting, most_users
from agentload.capacity.plan.slo import Target
from agentload.scenario.running import Slo
from agentload.sim.core import EngineConfig, StepCost
from agentload.sim.profiles import load_profile


def flat(step_s: float, base_s: float = 0.0) -> CostDraw:
    """Every step takes the same time whatever is in it."""
    return CostDraw(StepCost(step_s, 0, 0, 0, 0), base_s, 0.0)


def one_session(*turns: PlannedTurn) -> Demand:
    return Demand("made", (PlannedSession("g", 0, turns),))


ENGINE = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=8192, num_blocks=10_000, async_scheduling=False
)


def test_a_lone_session_sees_its_steps_and_the_api_server() -> None:
    """A prompt within the budget is one step of 0.1 s behind 0.05 s of API server; the other nine
    tokens are one step each; the turns of a session come 2 s after the answer before."""
    demand = one_session(
        PlannedTurn("cold", 4000, 0, 10, 0.0),
        PlannedTurn("tool", 4500, 4000, 10, 2.0),
        PlannedTurn("tool", 5000, 4500, 10, 2.0),
    )
    found = play(ENGINE, flat(0.1, 0.05), demand, Load(1, 1, least_turns=20))
    assert {round(t.ttft_s, 9) for t in found.turns} == {0.15}
    assert {round(t.tpot_s or 0, 9) for t in found.later()} == {0.1}
    assert found.itl.quantile(0.5) == pytest.approx(0.1, rel=0.006)
    later = found.later()
    assert len(later) >= 20
    assert {t.cached_tokens for t in later} <= {4000, 4496, 0}


def test_a_full_server_makes_turns_wait() -> None:
    """Two sessions and room for one: the second's first token waits for the first's last."""
    demand = one_session(PlannedTurn("cold", 4000, 0, 11, 0.0))
    found = play(replace(ENGINE, max_num_seqs=1), flat(0.1), demand, Load(2, 1, least_turns=5))
    waits = sorted(round(t.ttft_s, 6) for t in found.turns)
    assert waits[0] >= 0.1
    assert max(waits) == pytest.approx(1.2, abs=0.11)


def test_turns_of_the_window_are_followed_to_their_end() -> None:
    """Answers of 20 s in a window that a handful of turns fills."""
    demand = one_session(
        PlannedTurn("cold", 4000, 0, 200, 0.0), PlannedTurn("tool", 4500, 4000, 200, 0.1)
    )
    found = play(ENGINE, flat(0.1), demand, Load(8, 1, least_turns=2))
    assert len(found.later()) >= 2
    assert all(turn.e2e_s == pytest.approx(20.0, abs=1.0) for turn in found.later())
    assert found.hit_ratio == pytest.approx(4000 / 4500)


def test_prefix_caching_off_is_seen_in_every_turn() -> None:
    demand = one_session(
        PlannedTurn("cold", 4000, 0, 5, 0.0), PlannedTurn("tool", 4500, 4000, 5, 0.5)
    )
    without = play(
        replace(ENGINE, enable_prefix_caching=False), flat(0.1), demand, Load(1, 1, least_turns=5)
    )
    assert without.hit_ratio == 0.0
    assert play(ENGINE, flat(0.1), demand, Load(1, 1, least_turns=5)).hit_ratio == pytest.approx(
        4000 / 4500
    )


def test_a_simulator_at_eight_times_real_time_is_eight_times_as_fast() -> None:
    draw = at_speed(CostDraw(StepCost(0.8, 0.08, 8, 16, 24, 4, form="roof"), 0.8, 0.016), 8)
    assert draw.cost == StepCost(0.1, 0.01, 1, 2, 3, 0.5, form="roof")
    assert (draw.base_s, draw.per_token_s) == (0.1, 0.002)


def test_draws_spread_as_their_intervals_say() -> None:
    """A data sheet's interval is a factor of two each way for 90 %."""
    file = load_profile("H100-80G", "Qwen2.5-7B").cost_file
    file = file.model_copy(update={"step_discrepancy": 0.0})
    middle = central(file).cost.c1
    inside = [middle / 2 <= d.cost.c1 <= middle * 2 for d in drawn(file, 2000, 1)]
    assert 0.87 < sum(inside) / len(inside) < 0.93
    assert drawn(file, 5, 1) == drawn(file, 5, 1)
    assert drawn(file, 5, 1) != drawn(file, 5, 2)


def test_too_few_turns_give_no_percentile() -> None:
    assert percentile([1.0] * 99, 0.99) is None
    assert percentile([float(n) for n in range(101)], 0.99) == 99.0


@pytest.mark.parametrize("routing", list(ROUTINGS))
def test_users_have_seats(routing: str) -> None:
    seats = seat_users(routing, 1000, 10, "salt")  # type: ignore[arg-type]
    loads = [seats.count(n) for n in range(10)]
    assert sum(loads) == 1000
    if routing == "hash":
        assert max(loads) > 100
    elif routing == "bounded-hash":
        assert max(loads) <= BOUND * 100
        assert max(loads) > 100
    else:
        assert loads == [100] * 10


def agents(count: int = 24) -> Demand:
    """Sessions of 86K to 123K tokens with a shared front of 6,000, +400 tokens and about 300
    answered tokens a turn, 10 s between turns: those of the published capacity table."""
    rng = Random("agents")
    sessions = []
    for _ in range(count):
        turns, prompt, prefix = [], 86_000, 6_000
        while prompt <= 123_000:
            answer = int(rng.expovariate(1 / 300)) + 2
            name = "tool" if turns else "cold"
            turns.append(PlannedTurn(name, prompt, prefix, answer, rng.expovariate(1 / 10)))
            prefix = prompt
            prompt += answer + 400
        sessions.append(PlannedSession("all", 6_000, tuple(turns)))
    return Demand("agents", tuple(sessions))


@pytest.mark.slow
def test_the_search_finds_the_known_cliff_and_what_the_threshold_is_worth() -> None:
    """P99 of warm TTFT below 2 s on an H100 with Qwen2.5-7B: two to four sessions by default,
    nine (0.54 s) and not ten (5.6 s) with a threshold of 512; ten contexts fit in its cache."""
    profile = load_profile("H100-80G", "Qwen2.5-7B", max_model_len=131_072)
    hardware = Hardware("H100-80G", 1, profile.engine_config(), profile.cost_file)
    demand = agents()
    assert hardware.sessions_that_fit(demand) == pytest.approx(10.0, abs=0.7)
    bench = Bench(demand, Target({"tool": Slo(ttft_s=2.0)}), 3, 600, lambda _: None)
    default = Setting.default(hardware, "sticky")
    assert 2 <= most_users(bench, default) <= 5
    found = most_users(bench, replace(default, long_prefill_token_threshold=512))
    assert 8 <= found <= 10


@pytest.mark.slow
def test_routing_that_forgets_sessions_destroys_the_cache() -> None:
    """Four H100 with eight sessions each and a threshold of 512, published: hit ratio 0.40 by
    round robin, 0.42 by least load, 0.995 sticky."""
    profile = load_profile("H100-80G", "Qwen2.5-7B", max_model_len=131_072)
    config = profile.engine_config(long_prefill_token_threshold=512)
    demand, draw = agents(), central(profile.cost_file)
    hit = {
        routing: play(config, draw, demand, Load(32, 4, routing, least_turns=400)).hit_ratio or 0.0
        for routing in ("sticky", "round-robin", "least-loaded", "prefix-aware")
    }
    assert hit["sticky"] > 0.97
    assert hit["prefix-aware"] > 0.9
    assert hit["round-robin"] < 0.6
    assert hit["least-loaded"] < 0.7
