"""An experiment file is checked whole before anything starts."""

from pathlib import Path

import pytest

from agentload.experiment.errors import ExperimentError
from agentload.experiment.faults import faults
from agentload.experiment.load import load
from agentload.experiment.plan import Arm, Experiment, cells, flags_of, token_budget
from agentload.experiment.scenarios import (
    arm_scenarios,
    base_scenario,
    length_warnings,
    set_options,
)
from agentload.scenario import ScenarioError, parse_override

ROOT = Path(__file__).parents[2]


def experiment(**changes: object) -> Experiment:
    plain = {
        "name": "two-switches",
        "scenario": "steady.yaml",
        "target": {"kind": "embedded", "flags": {"max-model-len": 131072}},
        "arms": [
            {"name": "cache-on", "flags": {"enable-prefix-caching": True}},
            {"name": "cache-off", "flags": {"enable-prefix-caching": False}},
        ],
        "vary": ["enable-prefix-caching"],
    }
    return Experiment.model_validate({**plain, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steady.yaml").write_text("")
    return tmp_path


# Case E02: the server that refuses to start in the arm without chunked prefill.
@pytest.mark.parametrize(
    ("chunked", "budget", "model_len", "verdict", "written"),
    [
        (False, 8192, 131072, "reject", None),
        (False, 131072, 131072, "ok", 131072),
        (True, 2048, 131072, "ok", 2048),
        (True, 8192, 4096, "ok", 8192),
        (False, None, 32768, "set", 32768),
        (True, None, 32768, "ok", None),
        (False, None, None, "ok", None),
    ],
)
def test_the_token_budget_follows_the_servers_rule(
    chunked: bool, budget: int | None, model_len: int | None, verdict: str, written: int | None
) -> None:
    decided = token_budget(chunked, budget, model_len)
    assert (decided.verdict, decided.written) == (verdict, written)


def test_an_arm_without_chunked_prefill_gets_the_budget_written(folder: Path) -> None:
    plan = experiment(
        arms=[
            {"name": "on", "flags": {"enable-chunked-prefill": True}},
            {"name": "off", "flags": {"enable-chunked-prefill": False}},
        ],
        vary=["enable-chunked-prefill", "max-num-batched-tokens"],
    )
    assert faults(plan, folder) == []
    assert flags_of(plan, plan.arms[1])["max-num-batched-tokens"] == 131072


def test_a_hidden_difference_between_arms_is_refused(folder: Path) -> None:
    plan = experiment(
        arms=[
            {"name": "on", "flags": {"enable-chunked-prefill": True}},
            {"name": "off", "flags": {"enable-chunked-prefill": False}},
        ],
        vary=["enable-chunked-prefill"],
    )
    (fault,) = faults(plan, folder)
    assert "max-num-batched-tokens" in fault
    assert "131072" in fault


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    plan = experiment(
        arms=[
            {"name": "same", "flags": {"enable-prefix-caching": True, "max-num-seqs": 4}},
            {
                "name": "same",
                "base_url": "http://127.0.0.1:1/v1",
                "flags": {"enable-chunked-prefill": False, "max-num-batched-tokens": 2048},
            },
        ],
        vary=["enable-prefix-caching", "block-size"],
    )
    text = "\n".join(faults(plan, tmp_path))
    for wanted in [
        "steady.yaml: no such file",
        "'same' is given 2 times",
        "arms.same: has a base_url",
        "below max-model-len 131072",
        "'max-num-seqs'",
        "'block-size' is the same in every arm",
    ]:
        assert wanted in text


def test_every_arm_runs_once_in_each_block_and_in_a_shuffled_order() -> None:
    arms = [{"name": f"arm{i}"} for i in range(4)]
    plan = experiment(arms=arms, vary=[], blocks=6, seeds=[1, 2])
    planned = cells(plan)
    assert [cell.index for cell in planned] == list(range(48))
    for start in range(0, 48, 4):
        assert {c.arm.name for c in planned[start : start + 4]} == {f"arm{i}" for i in range(4)}
    orders = {tuple(c.arm.name for c in planned[s : s + 4]) for s in range(0, 48, 4)}
    assert len(orders) > 3
    assert planned == cells(plan)
    assert len({cell.run_id for cell in planned}) == 48


def test_a_cell_is_named_after_its_arm() -> None:
    plan = experiment()
    assert all(cell.arm.name in cell.run_id for cell in cells(plan))
    assert isinstance(plan.arms[0], Arm)


def test_a_key_among_the_flags_is_refused_without_being_shown(folder: Path) -> None:
    plan = experiment(target={"kind": "embedded", "flags": {"api-key": "sk-canary"}})
    (fault,) = faults(plan, folder)
    assert "target.flags.api-key" in fault
    assert "canary" not in fault


def of_scenario(**changes: object) -> Experiment:
    arms = [
        {"name": "plain", "scenario": {"prefix.dynamic": "none"}},
        {"name": "head", "scenario": {"prefix.dynamic": "head"}},
    ]
    plain = {
        "scenario": str(ROOT / "scenarios" / "smoke.yaml"),
        "overrides": {"context_scale": 0.5},
        "arms": arms,
        "vary": ["scenario.prefix.dynamic"],
    }
    return experiment(**{**plain, **changes})


def test_arms_may_differ_in_the_scenario_where_vary_names_it(folder: Path) -> None:
    plan = of_scenario()
    assert faults(plan, folder) == []
    (fault,) = faults(of_scenario(vary=[]), folder)
    assert "scenario.prefix.dynamic" in fault
    (unchanged,) = faults(of_scenario(vary=["scenario.prefix.dynamic", "scenario.seed"]), folder)
    assert "'scenario.seed' is the same in every arm" in unchanged
    assert base_scenario(plan, folder).context_scale == 0.5
    made = arm_scenarios(plan, folder)
    assert {arm: s.prefix.dynamic for arm, s in made.items()} == {"plain": "none", "head": "head"}
    assert {s.context_scale for s in made.values()} == {0.5}


def test_the_seed_is_not_set_twice(folder: Path) -> None:
    found = faults(of_scenario(overrides={"seed": 4}), folder)
    assert found == ["overrides: seed is set by `seeds`"]


def test_faults_of_every_arms_scenario_are_told_with_the_arm(folder: Path) -> None:
    arms = [
        {"name": "a", "scenario": {"prefix.dynamic": "top"}},
        {"name": "b", "scenario": {"prefix.other": 1}},
    ]
    with pytest.raises(ExperimentError) as caught:
        arm_scenarios(of_scenario(arms=arms), folder)
    first, second = str(caught.value).split("\n")
    assert first.startswith("arms.a.scenario: ")
    assert "prefix.dynamic" in first
    assert second.startswith("arms.b.scenario: ")
    assert "prefix.other" in second
    with pytest.raises(ScenarioError, match=r"context_scale"):
        base_scenario(of_scenario(overrides={"context_scale": -1}), folder)


@pytest.mark.parametrize(
    "value",
    [3, 1e-7, True, None, "none", "1e-7", "yes", "a: b", [{"name": "x", "users": 4}], {"k": 1.5}],
)
def test_an_override_reaches_the_load_as_it_was(value: object) -> None:
    option, text = set_options({"a.b": value})
    assert option == "--set"
    assert parse_override(text) == ("a.b", value)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_experiment_can_be_run(path: Path) -> None:
    plan = load(path)
    assert plan.name == path.stem or path.stem == "vllm-command"
    assert set(arm_scenarios(plan, path.parent)) == {arm.name for arm in plan.arms}
    assert f"`{path.name}`" in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: one\nname: two\n", "given again"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("- name: one\n", "mapping"),
        ("name: [\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    with pytest.raises(ExperimentError, match=said):
        load(file)


def test_arms_whose_sessions_do_not_reach_their_last_turn_are_named(folder: Path) -> None:
    ending = {"turns.user_turns_per_session": {"dist": "constant", "value": 20}}
    long = [{"name": "all", "duration_s": 9000, "users": 2}]
    arms = [
        {"name": "short", "scenario": ending},
        {"name": "long", "scenario": {**ending, "stages": long}},
        {"name": "endless", "scenario": {}},
    ]
    plan = of_scenario(arms=arms)
    (warning,) = length_warnings(plan, arm_scenarios(plan, folder))
    assert warning.startswith("short: the run is shorter (20 s) than a session is likely to be")
    assert warning.endswith("most sessions will not reach their last turn")
