"""The core against times recorded from vLLM 0.32.0's own scheduler classes.

`golden.json` has sessions that append to their context. `golden_hard.json` has little memory,
prefill thresholds, deep forks, equal prompts at once and clients that go away; it was made with
`tests/vllm/scheduler_oracle.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim.workloads import FastRun, Workload, differences, from_compact, from_golden


def load(name: str) -> list[dict[str, Any]]:
    """The recorded workloads of a file beside this one."""
    cases: list[dict[str, Any]] = json.loads(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
    )
    return cases


GOLDEN = [(from_golden(case), case) for case in load("golden.json")]
HARD = [(from_compact(case), case) for case in load("golden_hard.json")]


@pytest.mark.parametrize(("workload", "record"), GOLDEN, ids=range(len(GOLDEN)))
def test_equals_vllm(workload: Workload, record: dict[str, Any]) -> None:
    check(FastRun(workload), record)


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "record"), HARD, ids=range(len(HARD)))
def test_equals_vllm_where_it_is_hard(workload: Workload, record: dict[str, Any]) -> None:
    check(FastRun(workload), record)


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "record"), GOLDEN[::4], ids=range(0, len(GOLDEN), 4))
def test_equals_vllm_step_by_step(workload: Workload, record: dict[str, Any]) -> None:
    check(FastRun(workload, max_jump_steps=1), record)


def check(run: FastRun, record: dict[str, Any]) -> None:
    """Every request as recorded, in as many steps, with no block left behind."""
    assert differences(record["expect"], run.rows()) == []
    assert run.engine.counters.steps == record["steps"]
    assert run.engine.kv_usage == 0
