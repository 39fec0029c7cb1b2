"""The scheduler core against vLLM's own scheduler classes, on workloads nobody has recorded."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sim.random_workloads import random_workload
from tests.sim.workloads import FastRun, differences
from tests.vllm import install

ORACLE = Path(__file__).with_name("scheduler_oracle.py")
SEEDS = range(1000, 1040)
# A folder with a config.json is all that vLLM's configuration classes need; no weights are read.
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 200000,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "torch_dtype": "float32",
    "vocab_size": 1024,
}

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


def run_vllm(python: Path, model_dir: Path, workloads: list[dict[str, Any]]) -> list[Any]:
    """vLLM's results for the workloads, in order."""
    (model_dir / "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")
    done = subprocess.run(
        [python, ORACLE, model_dir],
        input=json.dumps(workloads),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **install.OFFLINE},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout))


def test_every_request_is_timed_as_vllm_times_it(vllm_venv: Path, tmp_path: Path) -> None:
    workloads = [random_workload(seed) for seed in SEEDS]
    results = run_vllm(install.python_of(vllm_venv), tmp_path, workloads)
    faults = []
    for seed, workload, result in zip(SEEDS, workloads, results, strict=True):
        run = FastRun(workload)
        lines = differences(result["expect"], run.rows())
        if run.engine.counters.steps != result["steps"]:
            lines.append(f"{result['steps']} steps, got {run.engine.counters.steps}")
        faults += [f"seed {seed}: {len(lines)} differences, first: {lines[0]}"] if lines else []
    assert faults == []
