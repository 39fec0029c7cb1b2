"""An experiment file is checked whole before anything starts."""

from pathlib import Path

import pytest

from agentload.experiment.plan import Arm, Experiment, cells, faults, flags_of, token_budget


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
