"""The command `agentload compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentload.console import output_console
from analysis.faults import BadInputError
from analysis.gate import Judged, Rule, judge, parse_rule
from analysis.measured import Measured, measure
from analysis.metrics import Arm
from analysis.report import tables
from analysis.report.table import verdict_lines
from analysis.results import compare_arms
from analysis.statistics import pair

FAILED, BAD_INPUT, NOT_COMPARABLE, UNDECIDED = 1, 2, 3, 4


def main(argv: Sequence[str]) -> int:
    """Compare run B with run A, turn by turn.

    Exit code 0 when every rule passes, 1 when one fails, 2 for input that cannot be read, 3 when
    the runs cannot be compared, 4 when no rule fails and one cannot be decided.
    """
    options = _parser().parse_args(argv)
    rules, runs, faults = _read(options)
    if faults:
        print("\n".join(f"agentload compare: {fault}" for fault in faults), file=sys.stderr)
        return BAD_INPUT
    obstacle = obstacle_of(runs)
    if obstacle is not None:
        print(f"agentload compare: {obstacle}", file=sys.stderr)
        return NOT_COMPARABLE
    arms = [Arm(f"{side} {run.arm}", (run,)) for side, run in zip("AB", runs, strict=True)]
    console = output_console()
    for arm in arms:
        for line in verdict_lines(arm):
            console.print(line, style="yellow", markup=False)
    _print(arms, console)
    return _judge(rules, arms, console)


def _read(options: argparse.Namespace) -> tuple[list[Rule], list[Measured], list[Exception]]:
    """Rules, runs, and every fault of both."""
    rules: list[Rule] = []
    runs: list[Measured] = []
    faults: list[Exception] = []
    for text in options.fail_if:
        try:
            rules.append(parse_rule(text))
        except ValueError as error:
            faults.append(error)
    for folder in options.runs:
        try:
            runs.append(measure(folder, keep_good_rows=options.keep_good_rows))
        except (BadInputError, ValueError) as error:
            faults.append(error)
    return rules, runs, faults


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload compare",
        description="Compare run B with run A on the turns that both have.",
        epilog="Exit code: 0 passed, 1 failed, 2 bad input, 3 not comparable, 4 not decided.",
    )
    parser.add_argument(
        "runs", nargs=2, type=Path, metavar="RUN", help="a run folder: first A, then B"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="RULE",
        help="such as 'ttft_p99 > +10%%', 'cold.ttft_mean > +0.5s' or 'itl_max_mean > 300ms'; "
        "with a sign it is the change from A to B. Can be given more than once",
    )
    parser.add_argument("--keep-good-rows", action="store_true", help="leave faulty rows out")
    return parser


def obstacle_of(runs: Sequence[Measured]) -> str | None:
    """Why two runs must not be compared; None when they may be."""
    for side, run in zip("AB", runs, strict=True):
        if not run.turns["counted"].any():
            return f"{side} ({run.run.path}) has no measured turn"
        if run.run.manifest.verdict == "invalid":
            reasons = "; ".join(run.run.manifest.verdict_reasons)
            return f"{side} ({run.run.path}) is invalid: {reasons}"
        if run.whole_scrape.restarts():
            return f"{side} ({run.run.path}): a server restarted during the run"
    a, b = (run.run.manifest for run in runs)
    for name in ("name", "context_scale", "seed"):
        if a.scenario.get(name) != b.scenario.get(name):
            return (
                f"the scenarios differ in {name}: {a.scenario.get(name)} and {b.scenario.get(name)}"
            )
    if not len(pair([Arm("A", (runs[0],)), Arm("B", (runs[1],))]).session):
        return "the runs have no turn in common (same session and turn index)"
    return None


def _print(arms: Sequence[Arm], console: Console) -> None:
    comparison = compare_arms(arms, arms[0].name)
    for name, values in comparison.differing.items():
        console.print(f"{name}: {' | '.join(values.values())}", markup=False)
    table = tables.differences(comparison, whole=True)
    for figure, _, base, difference, interval, _ in table.rows:
        line = f"{figure:32.32} {base:>8} {difference:>13}  {interval}"
        console.print(line, markup=False, highlight=False)
    console.print(table.note, style="dim", markup=False)


def _judge(rules: Sequence[Rule], arms: Sequence[Arm], console: Console) -> int:
    paired = pair(arms)
    judged = [judge(rule, paired, arms[0].name, arms[1].name) for rule in rules]
    for one in judged:
        console.print(_line(one), markup=False, highlight=False)
    verdicts = {one.verdict for one in judged}
    return FAILED if "fail" in verdicts else UNDECIDED if "undecided" in verdicts else 0


def _line(judged: Judged) -> str:
    """`FAIL  ttft_p99 > +10%: +23.1 % (+14.0 to +33.0)`."""
    rule = judged.rule
    scale, unit = (100.0, "%") if rule.kind == "relative" else (1.0, rule.statistic.unit)
    sign = "" if rule.kind == "value" else "+"
    value = "" if judged.value is None else f": {judged.value * scale:{sign}.3g} {unit}"
    if judged.low is not None and judged.high is not None:
        value += f" ({judged.low * scale:{sign}.3g} to {judged.high * scale:{sign}.3g})"
    reason = f"; {judged.reason}" if judged.reason else ""
    return f"{judged.verdict.upper():10}{rule.text}{value}{reason}"
