"""The CI gate: rules, verdicts, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

from analysis.compare_command import main
from analysis.gate import parse_rule


def run(folder: Path, factor: float, *, noise: float = 0.05, **given: Any) -> str:
    """20 sessions of 10 turns; TTFT around 1 s x factor, the same turns in every run."""
    shared, own = np.random.default_rng(1), np.random.default_rng(int(factor * 1000))
    rows = []
    for s in range(20):
        level = 1.0 + 0.3 * shared.random()
        for i in range(1, 11):
            ttft = factor * level * (1 + noise * own.standard_normal())
            rows.append(planted.turn(f"s{s}", i, start=10.0 + i, ttft=float(ttft)))
    return str(planted.write_run(folder, rows, **given))


@pytest.mark.parametrize(
    ("factor", "rule", "code", "word"),
    [
        (1.5, "ttft_p90 > +10%", 1, "FAIL"),
        (1.0, "ttft_p90 > +10%", 0, "PASS"),
        (1.1, "ttft_p90 > +10%", 4, "UNDECIDED"),
        (1.5, "ttft_mean > +300ms", 1, "FAIL"),
        (0.5, "ttft_mean < -20%", 1, "FAIL"),
        (1.0, "ttft_mean > 2s", 0, "PASS"),
        (3.0, "ttft_mean > 2s", 1, "FAIL"),
        (1.0, "ttft_p99 > +50%", 4, "UNDECIDED"),  # 200 turns are too few
        (1.0, "cold.ttft_mean > +50%", 4, "UNDECIDED"),  # there are no cold turns
    ],
)
def test_a_rule_fails_only_when_the_whole_interval_breaks_it(
    tmp_path: Path, capsys: Any, factor: float, rule: str, code: int, word: str
) -> None:
    a, b = run(tmp_path / "a", 1.0), run(tmp_path / "b", factor)
    assert main([a, b, "--fail-if", rule]) == code
    (line,) = [x for x in capsys.readouterr().out.splitlines() if rule in x]
    assert line.startswith(word)


def test_one_failing_rule_decides(tmp_path: Path, capsys: Any) -> None:
    a, b = run(tmp_path / "a", 1.0), run(tmp_path / "b", 1.5)
    rules = ["ttft_p50 > +900%", "ttft_p99 > +1%", "ttft_p50 > +10%"]
    assert main([a, b, *(x for r in rules for x in ("--fail-if", r))]) == 1
    shown = capsys.readouterr().out
    assert [w for w in ("PASS", "UNDECIDED", "FAIL") if w in shown] == ["PASS", "UNDECIDED", "FAIL"]


@pytest.mark.parametrize(
    "text", ["ttft_p98 > 1s", "ttft_p99", "ttft_p99 > 10%", "ttft_p99 >> +1%", "hot.ttft_p50 > 1s"]
)
def test_a_rule_that_is_none_says_what_is_allowed(tmp_path: Path, capsys: Any, text: str) -> None:
    with pytest.raises(ValueError, match="ttft"):
        parse_rule(text)
    a = run(tmp_path / "a", 1.0)
    assert main([a, a, "--fail-if", text]) == 2
    assert text in capsys.readouterr().err


def test_units_and_signs() -> None:
    assert parse_rule("ttft_p50 > +250ms").bound == pytest.approx(0.25)
    assert parse_rule("later.slo_share < -5points").bound == pytest.approx(-0.05)
    assert parse_rule("cold.ttft_mean>12.5s").kind == "value"
    assert parse_rule("ttft_p50 > +10%").kind == "relative"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"verdict": {"level": "invalid", "reasons": ["rows lost"]}}, "is invalid: rows lost"),
        ({"scenario": {"seed": 2}}, "the scenarios differ in seed: 1 and 2"),
        ({"scenario": {"context_scale": 0.5}}, "the scenarios differ in context_scale"),
        ({"measured_from_s": 900.0}, "has no measured turn"),
    ],
)
def test_runs_that_must_not_be_compared_are_refused(
    tmp_path: Path, capsys: Any, given: dict[str, Any], reason: str
) -> None:
    a, b = run(tmp_path / "a", 1.0), run(tmp_path / "b", 1.0, **given)
    assert main([a, b]) == 3
    assert reason in capsys.readouterr().err


def test_an_empty_side_is_refused(tmp_path: Path, capsys: Any) -> None:
    a = run(tmp_path / "a", 1.0)
    empty = str(planted.write_run(tmp_path / "empty", []))
    assert main([a, empty]) == 3
    assert "B (" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_is_bad_input(tmp_path: Path, capsys: Any) -> None:
    assert main([run(tmp_path / "a", 1.0), str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err
