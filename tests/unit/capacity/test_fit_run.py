"""Coefficients from request-level times of a run whose engine was planted."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from agentload.capacity.cost.fit import FitError, fit_form, prior_around, wide_prior
from agentload.capacity.cost.form import NAMES
from agentload.capacity.cost.posterior import believe, condition_number
from agentload.capacity.fit.command import main
from agentload.capacity.fit.run import Seen, fit_run
from agentload.capacity.paths import Reusing, paths
from agentload.sim.core import Frontend, Offline, Replica, StepCost, Turn, TurnResult
from agentload.sim.profiles import read_cost_file
from tests.unit.capacity.hidden_engines import engine
from tests.unit.capacity.virtual_server import HiddenCost, linear

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
import planted as folders

FRONTEND = (0.004, 2e-6)
SESSIONS, TURNS = 12, 9


def played(cost: StepCost, seed: int = 1) -> tuple[list[TurnResult], dict[tuple[int, int], Turn]]:
    """Growing sessions on an engine with 2 % noise a step."""
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
    return offline.run(), sent


def planted(cost: StepCost, *, server_times: bool, seed: int = 1) -> list[Seen]:
    """The sessions as a client and its server saw them."""
    results, sent = played(cost, seed)
    rng = random.Random(seed)
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
        for result in results
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


def run_folder(folder: Path, cost: StepCost, *, server_times: bool) -> Path:
    """The sessions recorded as the load generator records them."""
    _, config = engine("A100-40G")
    results, sent = played(cost)
    turns = []
    for result in results:
        request, key = result.request, (result.session, result.turn_index)
        before = sent.get((result.session, result.turn_index - 1))
        shared = before.prompt[0][1] if before else 0
        scheduled, first = request.scheduled_s or 0.0, request.first_token_s or 0.0
        own = {
            "server_queue_s": scheduled - result.engine_s,
            "server_prefill_s": first - scheduled,
            "server_decode_s": (request.last_token_s or 0.0) - first,
            "frontend_s": result.engine_s - result.sent_s,
        }
        turns.append(
            folders.turn(
                f"s{result.session}", result.turn_index, start=result.sent_s, ttft=result.ttft_s,
                decode=result.e2e_s - result.ttft_s, prompt_tokens=request.prompt_tokens,
                planned_prompt_tokens=request.prompt_tokens, planned_prefix_tokens=shared,
                cached_tokens=request.cached_tokens, output_tokens=sent[key].output_tokens,
                **(own if server_times else {}),
            )
        )  # fmt: skip
    settings = {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "num_gpu_blocks": config.num_blocks,
        "block_size": 16,
        "max_model_len": config.max_model_len,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "vllm_version": "0.32.0",
    }
    return folders.write_run(folder, turns, arm={"name": "base", "settings": settings})


@pytest.mark.slow
@pytest.mark.parametrize("server_times", [True, False])
def test_the_command_fits_a_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server_times: bool
) -> None:
    cost, _ = engine("A100-40G")
    folder = run_folder(tmp_path / "run", cost, server_times=server_times)
    out = tmp_path / "cost.json"
    sheet = ["--gpu", "A100-40G", "--model-sheet", "Qwen2.5-7B"]
    assert main([str(folder), *sheet, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    file = read_cost_file(out)
    for name in ("c0", "c1", "c4"):
        one = file.coefficient(name)
        assert one.provenance == "fitted"
        assert one.value == pytest.approx(getattr(cost, name), rel=0.15), name
    assert file.in_force.max_num_batched_tokens == 2048
    assert file.version_profile == "0.32-0.33"
    assert "settled after" in printed
    assert ("no turn has the server's own times" in printed) is not server_times
    if server_times:
        assert file.frontend.per_token_s.value == pytest.approx(2e-6, rel=0.3)
    else:
        assert file.frontend.per_token_s.provenance == "prior only"


def test_a_folder_that_is_no_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "cost.json")]) == 2
    assert "manifest.json" in capsys.readouterr().err
    assert not (tmp_path / "cost.json").exists()


def test_a_missing_folder_for_the_file_is_said_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path), "--out", str(tmp_path / "nothing" / "cost.json")])
    assert stopped.value.code == 2
    assert "its folder does not exist" in capsys.readouterr().err


def test_a_hit_may_reach_into_an_answer_and_equal_names_are_equal_text() -> None:
    turns = [Reusing(100, 40, 32), Reusing(200, 10, 128), Reusing(260, 10, 48)]
    first, second, third = (turn.prompt for turn in paths("s", turns, 32, 16))
    assert first == ((("front", 32), 32), (("s", 0, 0), 16), (("s", 0, 16), 52))
    assert second == ((("front", 32), 32), (("s", 0, 0), 16), (("s", 0, 16), 80), (("s", 1, 0), 72))
    assert third == ((("front", 32), 32), (("s", 0, 0), 16), (("s", 2, 0), 212))
    for turn, prompt in zip(turns, (first, second, third), strict=True):
        assert sum(tokens for _, tokens in prompt) == turn.prompt_tokens
