"""The core against times recorded from vLLM 0.32.0's own scheduler classes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim.workloads import FastRun, differences, from_golden

HERE = Path(__file__).parent
GOLDEN: list[dict[str, Any]] = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
@pytest.mark.parametrize("max_jump_steps", [None, 1], ids=["jumps", "steps"])
def test_equals_vllm(case: dict[str, Any], max_jump_steps: int | None) -> None:
    run = FastRun(from_golden(case), max_jump_steps=max_jump_steps)
    assert differences(case["expect"], run.rows()) == []
    assert run.engine.counters.steps == case["steps"]
    assert run.engine.kv_usage == 0
