"""A scenario whose contexts do not fit into the planned server is refused, not planned without."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentload.capacity.plan.command import main
from agentload.sim.profiles import InForce, load_profile

SCENARIOS = Path(__file__).parents[3] / "scenarios"
STEADY = str(SCENARIOS / "steady-append.yaml")


def test_contexts_longer_than_the_model_takes_are_refused_with_the_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    code = main(
        [
            *("--scenario", STEADY, "--sessions", "2", "--draws", "2", "--turns", "20"),
            *("--gpu", "H200-141G", "--model", "Qwen2.5-7B", "--out", str(out)),
        ]
    )
    said = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert "H200-141G" in said
    assert "123,000 tokens, and of the 32,768" in said
    assert "--max-model-len" in said
    assert not out.exists()


def test_turns_longer_than_the_kv_cache_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = InForce(kv_blocks=20, max_model_len=32_768, max_num_seqs=64)
    card = tmp_path / "card.json"
    profile = load_profile("H100-80G", "Qwen2.5-7B")
    profile.cost_file.model_copy(update={"in_force": found}).write(card)
    smoke = str(SCENARIOS / "smoke.yaml")
    code = main(["--scenario", smoke, "--sessions", "2", "--coefficients", str(card)])
    said = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert "are the most it takes (--max-model-len, KV cache)" in said
