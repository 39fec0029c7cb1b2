"""The command `agentload experiment`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import yaml
from rich.console import Console

from agentload.clock import NS_PER_S, MonotonicClock, wall_unix_s
from agentload.experiment.errors import ExperimentError
from agentload.experiment.load import load
from agentload.experiment.outcome import report, unlike_settings
from agentload.experiment.plan import Experiment, cells, differences
from agentload.experiment.progress import TerminalProgress
from agentload.experiment.run import Surroundings, run
from agentload.experiment.scenarios import arm_scenarios, base_scenario
from agentload.experiment.state import State
from agentload.recording.manifest import new_run_id
from agentload.scenario import Scenario, ScenarioError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


def main(argv: Sequence[str]) -> int:
    """Run the cells, print the table, write the report.

    Exit codes: 0 all cells complete, 1 a cell failed, 2 the plan cannot be run, 130 interrupted.
    """
    options = _parser().parse_args(argv)
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        return _experiment(options, console)
    except (ExperimentError, ScenarioError) as error:
        print(f"agentload experiment: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload experiment",
        description="Runs the arms of an experiment in interleaved order and compares them.",
    )
    parser.add_argument("file", type=Path, help="experiment file (YAML)")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with an unfinished one")
    parser.add_argument("--dry-run", action="store_true", help="check and print the plan only")
    return parser


def _experiment(options: argparse.Namespace, console: Console) -> int:
    experiment = load(options.file)
    scenario = base_scenario(experiment, options.file.parent)
    of_arms = arm_scenarios(experiment, options.file.parent)
    at_most_s = max(map(staged_s, of_arms.values()))
    _say_plan(console, experiment, at_most_s)
    if options.dry_run:
        return 0
    state = _state(options, experiment)
    frozen = _frozen_scenario(state.folder, scenario)
    console.print(f"folder: {state.folder}")
    try:
        with TerminalProgress(console, len(cells(experiment)), at_most_s) as progress:
            run(experiment, frozen, state, progress, Surroundings(time.sleep, monotonic_s))
    except KeyboardInterrupt:
        console.print(
            f"interrupted; what was recorded is in {state.folder}\n"
            f"go on with: agentload experiment {options.file} --resume {state.folder}"
        )
        return EXIT_INTERRUPTED
    return _finish(console, experiment, state)


def _finish(console: Console, experiment: Experiment, state: State) -> int:
    failed = state.unfinished()
    for cell in failed:
        load = f"the load ended with code {cell.exit_code}\n" if cell.exit_code else ""
        console.print(f"{cell.arm}: {load}{cell.last_lines or ''}", markup=False)
    for line in unlike_settings(state.found_by_arm(), experiment.vary):
        console.print(f"not what was meant: {line}", markup=False)
    folders = state.complete_folders()
    if folders:
        report(folders, state.folder)
        console.print("run folders:", *map(str, folders), sep="\n  ", markup=False)
    if failed:
        console.print(
            f"{len(failed)} cells failed; run them again with --resume {state.folder}", markup=False
        )
    return 1 if failed else 0


def _state(options: argparse.Namespace, experiment: Experiment) -> State:
    if options.resume is not None:
        return State.resume(options.resume, experiment)
    return State.begin(options.runs_dir / new_run_id(wall_unix_s(), experiment.name), experiment)


def _frozen_scenario(folder: Path, scenario: Scenario) -> Path:
    """The scenario as it was when the experiment began: a resumed one must not see an edit."""
    path = folder / "scenario.yaml"
    if not path.exists():
        text = yaml.safe_dump(scenario.resolved(), sort_keys=False, allow_unicode=True)
        path.write_text(text, encoding="utf-8")
    return path


def staged_s(scenario: Scenario) -> float:
    """The most a cell takes after its warm-up: every stage to its end, or the stop rule's time."""
    planned_s = sum(stage.duration_s for stage in scenario.stages)
    return planned_s if scenario.stop.after_s is None else min(planned_s, scenario.stop.after_s)


def _say_plan(console: Console, experiment: Experiment, at_most_s: float) -> None:
    count = len(cells(experiment))
    console.print(f"[bold]{experiment.name}[/bold]: {experiment.description}")
    console.print(
        f"{count} cells ({len(experiment.arms)} arms, {len(experiment.seeds)} seeds,"
        f" {experiment.blocks} blocks) of at most {at_most_s:.0f} s after warm-up,"
        f" {experiment.scenario}: {count * at_most_s / 60:.0f} min at most, plus server starts"
    )
    for name, values in differences(experiment).items():
        shown = ", ".join(str(value) for value in sorted(values, key=str))
        console.print(f"  arms differ in {name}: {shown}", markup=False)


def monotonic_s() -> float:
    return MonotonicClock().now_ns() / NS_PER_S


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
