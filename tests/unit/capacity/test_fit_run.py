"""Coefficients from request-level times of a run whose engine was planted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentload.capacity.fit import FitError, fit_form, prior_around, wide_prior
from agentload.capacity.fit_form import NAMES
from agentload.capacity.fit_run import Seen, fit_run
from agentload.capacity.posterior import believe, condition_number
from agentload.sim.core import Frontend, Offline, Replica, StepCost, Turn
from tests.unit.capacity.hidden_engines import engine
from tests.unit.capacity.virtual_server import HiddenCost, linear

FRONTEND = (0.004, 2e-6)
SESSIONS, TURNS = 12, 9


def planted(cost: StepCost, *, server_times: bool, seed: int = 1) -> list[Seen]:
    """Growing sessions on an engine with 2 % noise a step, as a client and its server saw them."""
    _, config = engine("A100-40G")
    rng = random.Random(seed)
    replica = Replica(config, cost, Frontend(*FRONTEND))
    replica.engine.cost = HiddenCost(linear(cost), rng)  # type: ignore[assignment]
    offline = Offline([replica])
    sent: dict[tuple[int, int], Turn] = {}
    for session in range(SESSIONS):
        turns, tokens = [], 4000 + 2500 * session
        for index in range(TURNS):
            turn = Turn(((f"s{session}", tokens),), rng.randrange(30, 200), rng.uniform(0.5, 4))
            sent[session, index] = turn
            turns.append(turn)
            tokens += rng.randrange(300, 900) + turn.output_tokens
        offline.add_session(iter(turns), rng.uniform(0, 20))
    return [
        Seen(
            replica="",
            sent_s=result.sent_s,
            turn=sent[result.session, result.turn_index],
            prompt_tokens=result.request.prompt_tokens,
            ttft_s=result.ttft_s + abs(rng.gauss(0, 5e-4)),
            decode_s=result.e2e_s - result.ttft_s,
            prefill_s=(
                (result.request.first_token_s or 0) - (result.request.scheduled_s or 0)
                if server_times
                else None
            ),
            frontend_s=None,
        )
        for result in offline.run()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("server_times", [True, False])
def test_a_run_gives_the_planted_coefficients_back(server_times: bool) -> None:
    cost, config = engine("A100-40G")
    prior = prior_around(
        {n: getattr(cost, n) * f for n, f in zip(NAMES, (1.3, 0.7, 2, 0.8, 1.4), strict=False)},
        2.0, "a sheet that is off",
    )  # fmt: skip
    found = fit_run(planted(cost, server_times=server_times), config, prior, FRONTEND)
    assert found.settled
    for name, tolerance in (("c0", 0.05), ("c1", 0.08), ("c4", 0.12), ("c3", 0.25)):
        true, value = getattr(cost, name), found.theta[NAMES.index(name)]
        assert abs(value / true - 1) < tolerance, (name, value, true)


@pytest.mark.slow
def test_what_a_run_cannot_tell_is_marked() -> None:
    """Twelve streams hardly show what a sequence costs by itself: only the prior says that."""
    cost, config = engine("A100-40G")
    found = fit_run(planted(cost, server_times=True), config, wide_prior(), FRONTEND)
    best = fit_form(found.at, wide_prior(), "linear")
    belief = believe(found.at, wide_prior(), best, draws=60)
    width = np.log(belief.draws).std(axis=0)
    assert width[NAMES.index("c2")] > 5 * width[NAMES.index("c0")]
    assert condition_number(found.at, best) > 10
    low, high = belief.interval()
    assert low[0] <= cost.c0 * 1.05
    assert high[0] >= cost.c0 * 0.95


def test_a_few_turns_are_not_fitted() -> None:
    cost, config = engine("A100-40G")
    with pytest.raises(FitError, match="at least 12"):
        fit_run(planted(cost, server_times=True)[:5], config, wide_prior(), FRONTEND)
