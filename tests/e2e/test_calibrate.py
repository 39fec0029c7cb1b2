"""`agentload calibrate` as a user runs it, against the embedded simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentload.capacity.calibrate.command import main
from agentload.sim.profiles import CostFile, load_profile, read_cost_file
from tests.e2e.sim_process import Sim

FAST = ("--gpu-profile", "H100-80G", "--model-profile", "Qwen2.5-7B")


def calibrate(url: str, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentload.capacity.calibrate.command"]
    target = [] if "--dry-run" in flags else ["--base-url", url]
    return subprocess.run(
        [*command, *target, "--out", str(out), *flags],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
def test_a_calibration_finds_what_the_simulator_was_given(tmp_path: Path) -> None:
    """Wide bounds: on a machine that does other work late chunks look like slow steps."""
    truth = load_profile("H100-80G", "Qwen2.5-7B").cost
    out = tmp_path / "cost.json"
    with Sim(*FAST, "--enable-prompt-tokens-details", "--speed", "2") as sim:
        flags = ("--depth", "8192", "--limit-s", "60", "--allow-busy")
        done = calibrate(f"http://127.0.0.1:{sim.port}", out, *flags)
    assert done.returncode == 0, done.stderr
    file = read_cost_file(out)
    # Steps, not coefficients: of a roofline only c0 + c5 is known.
    for step in ((0, 1, 100, 0.0), (8000, 1, 100, 8000 * 4000.0), (450, 0, 0, 450 * 8000.0)):
        found, true = file.step_cost().step_s(*step), truth.step_s(*step)
        assert 1 / 1.7 < found / true < 1.7, (step, found, true)
    check_structure(file)
    for told in ("90 % interval", "held out", "settings in force", "not modelled", "TTFT mean"):
        assert told in done.stdout, done.stdout


def check_structure(file: CostFile) -> None:
    assert 60 <= len(file.draws) <= 400
    assert file.in_force.kv_blocks
    assert file.in_force.prefix_caching is True
    assert file.in_force.max_model_len == 32_768
    assert file.version_profile == "0.32-0.33"
    assert {"c0", "c1", "c2", "c3", "c4"} <= set(file.step_share)
    assert "speculative decoding" in file.not_modelled
    assert file.depth_tokens is not None
    assert file.depth_tokens >= 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("status:code=429,retry_after=2,skip=3", "rate_limited"),
        ("buffer", "buffers the answer"),
        ("error:after=3,skip=4", "stream_error_event"),
    ],
)
def test_a_target_that_cannot_be_trusted_is_refused(tmp_path: Path, fault: str, said: str) -> None:
    out = tmp_path / "cost.json"
    with Sim(*FAST, "--fault", fault) as sim:
        done = calibrate(f"http://127.0.0.1:{sim.port}", out, "--depth", "600")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refused" in done.stderr
    assert said in done.stderr
    assert "to mend:" in done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_a_busy_server_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    body = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 9000, "ignore_eos": True}
    with Sim(*FAST) as sim, sim.open("/v1/completions", body) as connection:
        assert connection.recv(1)
        done = calibrate(f"http://127.0.0.1:{sim.port}", out, "--depth", "600")
    assert done.returncode == 1
    assert "1 requests running" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--depth", "5"), "--depth 5 must be at least 600"),
        (("--limit-s", "1"), "--limit-s 1 must be from 10"),
        (("--gpu", "H100-80G"), "--gpu and --model-sheet go together"),
        (("--out", "/no/such/folder/x.json"), "its folder does not exist"),
    ],
)
def test_a_wrong_call_names_what_is_allowed(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--base-url", "http://127.0.0.1:9", *flags])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_data_sheet_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpu", "B300", "--model-sheet", "Qwen2.5-7B"]) == 2
    assert "known: A100-40G" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = calibrate("http://127.0.0.1:9", tmp_path / "cost.json")
    assert done.returncode == 1
    assert "cannot connect" in done.stderr
    assert json.dumps(str(tmp_path)) not in done.stdout
