"""A recorded run against the model: errors are those that were planted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentload.capacity.plan.draws import CostDraw
from agentload.capacity.plan.recorded import of_run, recorded_sessions
from agentload.capacity.validate.command import main
from agentload.capacity.validate.replay import Validation, validate
from agentload.sim.core import EngineConfig, StepCost
from agentload.sim.profiles import load_profile
from agentload.sim.profiles.coefficients import InForce
from analysis.load import load_run
from analysis.measured import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
import planted

ENGINE = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=8192, num_blocks=50_000, async_scheduling=False
)
STEP_S = 0.02
THINK_S = 3.0


def flat_run(folder: Path, step_s: float = STEP_S, **manifest: object) -> Path:
    """Two sessions of 60 turns at a server whose every step takes `step_s`: a turn's first token
    after one step (its prompt is cached but for 200 tokens), nine more tokens one step each.
    Worked out by hand: no model of the project has a part in it."""
    turns, traces = [], []
    for number in range(2):
        at_s = 5.0 + 0.5 * number
        for index in range(60):
            prompt = 3000 + 200 * index
            prefix = prompt - 200 if index else 0
            turn = planted.turn(
                f"s{number}", index, start=at_s, ttft=step_s, decode=9 * step_s,
                prompt_tokens=prompt, planned_prompt_tokens=prompt, planned_prefix_tokens=prefix,
                cached_tokens=prefix // 16 * 16, output_tokens=10, output_chunks=10,
            )  # fmt: skip
            turns.append(turn)
            traces.append(planted.trace(turn, [round(step_s * 1e6)] * 9))
            at_s += 10 * step_s + THINK_S
    return planted.write_run(folder, turns, traces, **manifest)


def rows(found: Validation) -> dict[str, float | None]:
    return {row.figure: row.error for row in found.rows}


def flat(step_s: float) -> CostDraw:
    return CostDraw(StepCost(step_s, 0, 0, 0, 0), 0.0, 0.0)


def test_the_right_coefficients_miss_nothing(tmp_path: Path) -> None:
    found = validate(measure(flat_run(tmp_path)), ENGINE, flat(STEP_S))
    errors = rows(found)
    assert found.turns == 120
    for figure in ("T2+ ttft_s mean", "T2+ ttft_s P50", "T2+ ttft_s P99", "T2+ e2e_s P90"):
        assert errors[figure] == pytest.approx(0.0, abs=1e-6)
    assert errors["itl_s P50"] == pytest.approx(0.0, abs=0.006)  # the model's bins of one percent
    assert errors["output tokens/s"] == pytest.approx(0.0, abs=1e-6)
    assert errors["hit rate"] == 0.0
    assert errors["cold ttft_s P99"] is None  # two cold turns make no percentile
    assert found.passed
    assert found.ttft_mape == pytest.approx(0.0, abs=1e-6)


def test_steps_that_are_thirty_percent_too_slow_are_seen_where_they_matter(tmp_path: Path) -> None:
    found = validate(measure(flat_run(tmp_path)), ENGINE, flat(1.3 * STEP_S))
    errors = rows(found)
    assert errors["T2+ ttft_s P50"] == pytest.approx(0.3)
    assert errors["T2+ ttft_s P99"] == pytest.approx(0.3)
    assert errors["itl_s mean"] == pytest.approx(0.3, abs=0.01)
    assert errors["hit rate"] == 0.0
    # 3.26 s a turn in the place of 3.2: the load is closed, so throughput hardly moves
    assert errors["output tokens/s"] == pytest.approx(3.2 / 3.26 - 1, abs=0.002)
    assert not found.passed
    assert found.ttft_mape == pytest.approx(0.3)


def test_a_cache_that_is_off_in_the_model_shows_in_the_hit_rate(tmp_path: Path) -> None:
    off = replace(ENGINE, enable_prefix_caching=False)
    found = validate(measure(flat_run(tmp_path)), off, flat(STEP_S))
    row = next(row for row in found.rows if row.figure == "hit rate")
    assert row.predicted == 0.0
    assert row.measured is not None
    assert row.error == -row.measured
    assert row.passed is False


def test_turns_without_token_counts_are_left_out_and_said(tmp_path: Path) -> None:
    folder = flat_run(tmp_path)
    text = (folder / "turns.csv").read_text(encoding="utf-8").splitlines()
    column = text[0].split(",").index("output_tokens")
    cells = text[5].split(",")
    cells[column] = ""
    text[5] = ",".join(cells)
    (folder / "turns.csv").write_text("\n".join(text) + "\n", encoding="utf-8")
    found = validate(measure(folder), ENGINE, flat(STEP_S))
    assert found.turns == 119
    assert any("1 counted turn" in note for note in found.notes)


def test_recorded_sessions_are_a_demand_to_plan_with(tmp_path: Path) -> None:
    run = load_run(flat_run(tmp_path, scenario={"pace": 4.0}))
    [first, second] = recorded_sessions(run)
    assert (first.session_id, first.start_s, len(first.indices)) == ("s0", 5.0, 60)
    assert second.start_s == 5.5
    demand = of_run(run)
    assert demand.sessions[0].turns[1].prompt_tokens == 3200
    assert demand.sessions[0].turns[1].prefix_tokens == 3000
    assert demand.sessions[0].turns[1].wait_s == pytest.approx(4 * THINK_S)
    assert demand.longest_tokens == 3000 + 200 * 59 + 10


@pytest.fixture
def coefficients(tmp_path: Path) -> Path:
    """The flat server as a step-cost file."""
    file = load_profile("H100-80G", "Qwen2.5-7B").cost_file
    zero = {"value": 0.0, "provenance": "given"}
    raw = json.loads(file.model_dump_json(by_alias=True, exclude_none=True))
    raw["step"] = {
        "c0": {"value": STEP_S, "provenance": "given"},
        **{f"c{n}": zero for n in range(1, 6)},
    }
    raw["frontend"] = {"base_s": zero, "per_token_s": zero}
    raw["in_force"] = InForce(async_scheduling=False, max_num_batched_tokens=8192).model_dump(
        exclude_none=True
    )
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def test_the_command_passes_and_says_what_it_took_from_where(
    tmp_path: Path, coefficients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = flat_run(tmp_path / "run")
    assert main([str(folder), "--coefficients", str(coefficients)]) == 0
    shown = capsys.readouterr().out
    assert "T2+ ttft_s P99" in shown
    assert "the run does not say num_blocks" in shown
    assert "Not modelled: speculative decoding" in shown


def test_the_command_fails_when_a_mark_is_missed(
    tmp_path: Path, coefficients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = flat_run(tmp_path / "run", step_s=1.5 * STEP_S)
    assert main([str(folder), "--coefficients", str(coefficients), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    [row] = [row for row in document["rows"] if row["figure"] == "T2+ ttft_s P50"]
    assert row["error"] == pytest.approx(1 / 1.5 - 1)
    assert row["passed"] is False


def test_a_run_on_a_simulator_at_four_times_real_time_is_held_against_that_speed(
    tmp_path: Path, coefficients: Path
) -> None:
    target = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "sim_speed": 4.0}
    folder = flat_run(tmp_path / "run", step_s=STEP_S / 4, target=target)
    assert main([str(folder), "--coefficients", str(coefficients)]) == 0


def test_what_cannot_be_used_is_said_with_exit_code_2(
    tmp_path: Path, coefficients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none"), "--coefficients", str(coefficients)]) == 2
    folder = flat_run(tmp_path / "run")
    assert main([str(folder), "--coefficients", str(tmp_path / "none.json")]) == 2
    words = ["--set", "max_num_seqs=0", "--set", "speed=2"]
    assert main([str(folder), "--coefficients", str(coefficients), *words]) == 2
    shown = capsys.readouterr().err
    assert "speed=2" in shown
