"""The scripts of servers/ start a real vLLM, and an experiment reads back what is in force."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm import install
from tests.vllm.arms import MAX_MODEL_LEN, ROOT
from tests.vllm.server import MODEL, model_directory

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1600)]

EXPERIMENT = Path(__file__).with_name("experiment.yaml")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a CPU for vLLM, one for the load")
def test_base_and_optimised_get_what_they_ask_for(vllm_venv: Path, tmp_path: Path) -> None:
    settings = {
        "VLLM": str(vllm_venv / "bin" / "vllm"),
        "MODEL": str(model_directory()),
        "SERVED_MODEL_NAME": MODEL,
        "MAX_MODEL_LEN": str(MAX_MODEL_LEN),
    }
    words = ["-m", "agentload", "experiment", str(EXPERIMENT), "--runs-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | install.OFFLINE | settings,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = tmp_path.glob("*/experiment.json")
    cells = {cell["arm"]: cell for cell in json.loads(record.read_text())["cells"]}
    base, optimised = cells["base"], cells["optimised"]
    for cell, on in ((base, False), (optimised, True)):
        found, sources = cell["server_found"], cell["server_sources"]
        assert found["enable_chunked_prefill"] == str(on)
        assert sources["enable_chunked_prefill"] == "the server's log"
        assert found["enable_prefix_caching"] == str(on)
        assert sources["enable_prefix_caching"] == "/metrics"
        assert found["version"] == "0.32.0"
        assert found["max_model_len"] == str(MAX_MODEL_LEN)
        assert int(found["num_gpu_blocks"]) > 0
        assert cell["server_probe"]["effective"] is on
        manifest = json.loads((record.parent / cell["run_id"] / "manifest.json").read_text())
        assert manifest["arm"]["settings"]["enable_chunked_prefill"] == str(on)
    assert base["server_found"]["max_num_batched_tokens"] == str(MAX_MODEL_LEN)
    assert optimised["server_found"]["max_num_batched_tokens"] == "2048"
