"""The core against times recorded from vLLM 0.32.0's own scheduler classes."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentload.sim.core import Request, StepCost
from tests.sim.workloads import engine_config, run_fast

GOLDEN: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden.json").read_text(encoding="utf-8")
)


def faults(expected: list[list[Any]], requests: dict[int, Request]) -> list[str]:
    """One line per request whose times, hit or preemptions differ from the record."""
    lines = []
    for number, first_s, last_s, cached, preemptions in expected:
        request = requests[number]
        assert request.first_token_s is not None
        assert request.last_token_s is not None
        same = (
            abs(request.first_token_s - first_s) <= 1e-6
            and abs(request.last_token_s - last_s) <= 1e-6
            and request.cached_tokens == cached
            and request.preemptions == preemptions
        )
        if not same:
            lines.append(
                f"{number}: first {first_s} got {request.first_token_s}, "
                f"last {last_s} got {request.last_token_s}, "
                f"cached {cached} got {request.cached_tokens}, "
                f"preemptions {preemptions} got {request.preemptions}"
            )
    return lines


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_equals_vllm(case: dict[str, Any]) -> None:
    engine, requests = run_fast(
        engine_config(case["cfg"]), StepCost(**case["cost"]), case["sessions"], case["shared"]
    )
    assert faults(case["expect"], requests) == []
    assert engine.counters.steps == case["steps"]
    assert engine.kv_usage == 0
