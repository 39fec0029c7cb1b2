"""The CI gate: rules, verdicts, exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

from analysis.compare_command import main
from analysis.gate import judge, parse_rule
from analysis.measured import measure
from analysis.metrics import Arm
from analysis.statistics import STATISTICS, Paired, pair


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


FIGURES_S = (
    "ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean", "e2e_p50", "tpot_mean", "itl_p99_mean",
    "itl_max_mean", "jitter_mean",
)  # fmt: skip


def test_every_figure_takes_every_operator_unit_and_group() -> None:
    assert {s.name for s in STATISTICS} == {*FIGURES_S, "stall_s_per_1k_tokens", "slo_share"}
    written = {"+10%": ("relative", 0.1), "-20.5%": ("relative", -0.205)}
    timed = {"+250ms": ("difference", 0.25), "-2 s": ("difference", -2.0), "1.5s": ("value", 1.5)}
    plain = {"+0.25": ("difference", 0.25), "0.9": ("value", 0.9)}
    points = {"-5points": ("difference", -0.05), "95 points": ("value", 0.95)}
    allowed = {name: timed for name in FIGURES_S} | {
        "stall_s_per_1k_tokens": timed | plain,
        "slo_share": points | plain,
    }
    for name, bounds in allowed.items():
        for group, turns_of in (("cold.", "cold"), ("later.", "T2+"), ("", "T2+")):
            for operator in (">", "<", " > ", "<  "):
                for bound, (kind, number) in (written | bounds).items():
                    rule = parse_rule(f"{group}{name}{operator}{bound}")
                    assert (rule.statistic.name, rule.turns_of) == (name, turns_of)
                    assert (rule.kind, rule.above) == (kind, ">" in operator)
                    assert rule.bound == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no rule"),
        ("ttft_p99 >= +10%", "is no rule"),
        ("ttft_p99 = 1s", "is no rule"),
        ("TTFT_p99 > 1s", "is no rule"),
        ("tool.ttft_p99 > 1s", "is no rule"),
        (".ttft_p99 > 1s", "is no rule"),
        ("ttft_p99 > 1s; rm", "is no rule"),
        ("ttft_p99 > nan", "is no rule"),
        ("ttft_p99 > inf", "is no rule"),
        ("ttft_p99 > 1e3s", "is no rule"),
        ("ttft_p99 > 1_000ms", "is no rule"),
        ("ttft_p99 > 1,5s", "is no rule"),
        ("ttft_p99 > .5s", "is no rule"),
        ("ttft_p99 > ++1s", "is no rule"),
        ("ttft_p99 > −1s", "is no rule"),  # a minus sign that is no hyphen
        ("ttft_p99 > ١٠s", "is no rule"),  # Arabic ten
        ("ttft_p99 > 1s", "is no rule"),  # a no-break space
        ("ttft_p99 > 1min", "is no rule"),
        ("ttft_p99 > 1s > 2s", "is no rule"),
        ("ttft_p99 > 2000", "allowed here are %, s, ms"),
        ("ttft_p99 > +2", "allowed here are %, s, ms"),
        ("ttft_p99 > 5points", "allowed here are %, s, ms"),
        ("slo_share < 0.5s", "allowed here are %, points, no unit"),
        ("stall_s_per_1k_tokens > 5points", "allowed here are %, s, ms, no unit"),
        ("slo_share < 95%", "needs a sign"),
        ("slo_share < 95", "from 0 to 1"),
        ("slo_share < -500points", "from 0 to 1"),
        ("slo_share > 1", "no share is above 1"),
        ("ttft_mean < 0s", "nothing is below 0"),
        ("ttft_mean < -100%", "nothing falls by 100 %"),
        ("ttft_mean > " + "9" * 400 + "s", "too large"),
    ],
)
def test_a_hostile_rule_is_refused_with_its_reason(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ttft_p50 > +10%", "fail"),  # all of B's times are 1.5 times A's, of 1 s and more
        ("ttft_p50 < +10%", "pass"),
        ("ttft_p90 > 1s", "fail"),
        ("ttft_mean < 1s", "pass"),
        ("e2e_p50 > +100ms", "fail"),
        ("tpot_mean > +10%", "pass"),  # gaps are equal in both: 20 ms, one of 30 ms in each turn
        ("tpot_mean < 20ms", "pass"),
        ("itl_p99_mean > 30ms", "pass"),
        ("itl_max_mean > 29ms", "fail"),
        ("itl_max_mean < 31ms", "fail"),
        ("jitter_mean > +1ms", "pass"),
        ("stall_s_per_1k_tokens > 0", "pass"),
        ("stall_s_per_1k_tokens > +10%", "undecided"),  # of 0
        ("slo_share < 0.95", "fail"),  # the limit of 2 s holds for A only
        ("slo_share < 95 points", "fail"),
        ("slo_share > -1points", "pass"),
        ("ttft_p99 > 5s", "undecided"),  # 200 turns
        ("cold.slo_share < 0.95", "undecided"),  # no cold turn
    ],
)
def test_every_figure_is_judged(paired: Paired, text: str, verdict: str) -> None:
    judged = judge(parse_rule(text), paired, "A", "B")
    assert judged.verdict == verdict, judged
    assert (judged.reason is not None) == (verdict == "undecided")


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Paired:
    base = tmp_path_factory.mktemp("judged")
    arms = []
    for name, factor in (("A", 1.2), ("B", 1.8)):
        rows = [
            planted.turn(
                f"s{i // 10}", 1 + i % 10, ttft=factor * (1 + i % 7 / 20), decode=0.61,
                output_tokens=31,
            )
            for i in range(200)
        ]  # fmt: skip
        traces = [planted.trace(row, [20_000] * 29 + [30_000]) for row in rows]
        folder = planted.write_run(base / name, rows, traces)
        arms.append(Arm(name, (measure(folder),)))
    return pair(arms)


def test_every_fault_of_rules_and_folders_is_told(tmp_path: Path, capsys: Any) -> None:
    rules = ("--fail-if", "ttft_p98 > 1s", "--fail-if", "ttft_p50 > 3")
    assert main([str(tmp_path / "x"), str(tmp_path / "y"), *rules]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in ("ttft_p98 > 1s", "ttft_p50 > 3", "/x", "/y"))


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
