"""The command `agentload plan` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from agentload.capacity.plan.command import main
from agentload.kubernetes import kubectl
from agentload.sim.profiles import InForce, load_profile

ROOT = Path(__file__).parents[3]
SMOKE = str(ROOT / "scenarios" / "smoke.yaml")
SHEET = ["--gpu", "H100-80G", "--model", "Qwen2.5-7B"]
QUICK = ["--draws", "3", "--turns", "40", "--confidence", "0.6"]


def run(*words: str) -> int:
    return main([*words, *QUICK])


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Coefficients of a card with a small KV cache: few sessions fit, simulations are short."""
    profile = load_profile("H100-80G", "Qwen2.5-7B")
    found = InForce(kv_blocks=2100, max_model_len=32_768, max_num_seqs=64)
    path = tmp_path_factory.mktemp("card") / "card.json"
    profile.cost_file.model_copy(update={"in_force": found}).write(path)
    return str(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, card: str) -> Path:
    out = tmp_path_factory.mktemp("plan")
    code = run(
        "--scenario", SMOKE, "--developers", "30", "--sessions-per-developer", "0.5",
        "--coefficients", card, "--price", "H100-80G=2.5", "--slo", "tool.ttft_s=0.5",
        "--out", str(out),
    )  # fmt: skip
    assert code == 0
    return out


@pytest.mark.slow
def test_the_plan_is_written_as_json(written: Path) -> None:
    plan = json.loads((written / "plan.json").read_text(encoding="utf-8"))
    assert plan["schema"] == "agentload.plan/1"
    assert (plan["developers"], plan["sessions"]) == (30, 15)
    best = plan["best"]
    assert best["replicas"] * best["sessions_per_replica"] >= 15
    assert best["cost_per_hour"] == 2.5 * best["gpus"]
    assert best["cost_per_hour_and_developer"] == pytest.approx(best["cost_per_hour"] / 30)
    assert f"--max-num-seqs={best['max_num_seqs']}" in best["flags"]
    assert "--enable-chunked-prefill" in best["flags"]
    assert "--enable-prefix-caching" in best["flags"]
    interval = best["figures"]["later.ttft_p50_s"]
    assert 0 < interval["low"] <= interval["median"] <= interval["high"]
    assert any("prior only" in text for text in plan["warnings"])
    assert "speculative decoding" in plan["not_modelled"]


@pytest.mark.slow
def test_the_page_needs_no_network(written: Path) -> None:
    page = (written / "plan.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml;base64," in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "prior only" in page
    assert "Not modelled" in page


@pytest.mark.slow
@pytest.mark.needs("kubectl")
def test_the_patch_is_one_that_kubectl_applies(written: Path, tmp_path: Path) -> None:
    page = (written / "plan.html").read_text(encoding="utf-8")
    found = re.search(r"<pre>(kubectl patch .*?)</pre>", page, re.DOTALL)
    assert found
    words = found[1].replace("&#34;", '"').replace("&#39;", "'")
    patch = re.search(r"-p '(.*)'$", words)
    assert patch
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: agentload-server}\n"
        "spec: {replicas: 1, selector: {matchLabels: {a: b}},"
        " template: {metadata: {labels: {a: b}},"
        " spec: {containers: [{name: server, image: vllm, args: [--port=8000]}]}}}\n",
        encoding="utf-8",
    )
    command = [kubectl.find(), "patch", "--local", "-f", manifest, "--type=json", "-p", patch[1]]
    patched = subprocess.run(
        [*command, "-o", "json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    spec = json.loads(patched.stdout)["spec"]
    best = json.loads((written / "plan.json").read_text(encoding="utf-8"))["best"]
    assert spec["replicas"] == best["replicas"]
    args = spec["template"]["spec"]["containers"][0]["args"]
    assert args == ["--port=8000", *best["flags"]]


@pytest.mark.slow
def test_what_nothing_meets_is_an_exit_code_of_its_own(
    card: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--scenario", SMOKE, "--sessions", "4", "--coefficients", card]
    code = run(*words, "--slo", "tool.ttft_s=0.000001")
    assert code == 3
    assert "not even one session" in capsys.readouterr().out


@pytest.mark.slow
def test_one_knob_can_be_asked_about(card: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        "--scenario", SMOKE, "--sessions", "4", "--coefficients", card, "--slo", "tool.ttft_s=0.5",
        "--what-if", "enable_prefix_caching=false", "--replicas", "1",
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0
    assert "enable_prefix_caching=False" in shown
    assert re.search(r"hit_ratio +0\.[5-9]\d* +0 +-0\.[5-9]", shown)


FAULTS = [
    (["--scenario", SMOKE, "--sessions", "0", *SHEET], "'0' is not a whole number"),
    (["--scenario", SMOKE, "--sessions", "4", "--gpu", "H100-80G"], "--gpu needs --model"),
    (["--scenario", SMOKE, "--sessions", "4", "--gpu", "TPU", "--model", "Qwen2.5-7B"], "known: "),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--price", "H100-80G"], "GPU=MONEY"),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--slo", "tool.ttft=2"], "tool.ttft=2"),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--replicas", "2"], "--what-if"),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--what-if", "x=2"], "needs --replicas"),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--share", "1"], "below 1"),
    (["--scenario", "nothing.yaml", "--sessions", "4", *SHEET], "nothing.yaml"),
    (["--run", "nothing", "--sessions", "4", *SHEET], "is no folder"),
    (["--scenario", SMOKE, "--sessions", "4", "--coefficients", "nothing.json"], "cannot read"),
    (["--scenario", SMOKE, "--sessions", "4", *SHEET, "--max-model-len", "500"], "of the 500 that"),
]


@pytest.mark.parametrize(("words", "said"), FAULTS, ids=[said for _, said in FAULTS])
def test_what_cannot_be_used_is_said_with_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


def test_coefficients_without_kv_blocks_of_an_unknown_card_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = load_profile("H100-80G", "Qwen2.5-7B").cost_file
    path = tmp_path / "mine.json"
    file.model_copy(update={"subject": {"gpu": "mine", "model": "mine"}}).write(path)
    code = main(["--scenario", SMOKE, "--sessions", "4", "--coefficients", str(path)])
    assert code == 2
    shown = capsys.readouterr().err
    assert str(path) in shown
    assert "--kv-blocks" in shown
