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
from agentload.experiment.outcome import report
from agentload.experiment.plan import Experiment, cells, differences
from agentload.experiment.progress import TerminalProgress, in_words
from agentload.experiment.reaper import Reaper
from agentload.experiment.run import Surroundings, run
from agentload.experiment.scenarios import arm_scenarios, base_scenario, length_warnings
from agentload.experiment.state import EXPERIMENT_JSON, State
from agentload.folder_lock import FolderLock
from agentload.recording.manifest import new_run_id
from agentload.scenario import Scenario, ScenarioError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
LATEST = Path("latest")


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
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=LATEST,
        metavar="DIR",
        help="go on with an unfinished one; without DIR the latest of this name",
    )
    parser.add_argument("--dry-run", action="store_true", help="check and print the plan only")
    return parser


def _experiment(options: argparse.Namespace, console: Console) -> int:
    experiment = load(options.file)
    scenario = base_scenario(experiment, options.file.parent)
    of_arms = arm_scenarios(experiment, options.file.parent)
    at_most_s = max(map(staged_s, of_arms.values()))
    _say_plan(console, experiment, at_most_s)
    for warning in length_warnings(experiment, of_arms):
        console.print(f"  {warning}", style="yellow", markup=False)
    if options.dry_run:
        return 0
    state = _state(options, experiment)
    frozen = _frozen_scenario(state.folder, scenario)
    console.print(f"folder: {state.folder}")
    todo = [cell for cell in cells(experiment) if state.of(cell) != "complete"]
    try:
        with Reaper() as reaper, TerminalProgress(console, len(todo), at_most_s) as progress:
            around = Surroundings(time.sleep, monotonic_s, options.file.parent, reaper)
            run(experiment, frozen, state, progress, around)
    except KeyboardInterrupt:
        console.print(
            f"interrupted; what was recorded is in {state.folder}\n"
            f"go on with: agentload experiment {options.file} --resume {state.folder}"
        )
        return EXIT_INTERRUPTED
    return _finish(console, experiment, state)


def _finish(console: Console, experiment: Experiment, state: State) -> int:
    unfinished = state.unfinished()
    for cell in unfinished:
        what = "not compared" if cell.state == "refused" else cell.state
        load = f" (the load ended with code {cell.exit_code})" if cell.exit_code else ""
        text = (cell.last_lines or "no reason recorded").replace("\n", "\n  ")
        console.print(f"{cell.arm}: {what}{load}:\n  {text}", markup=False)
    for note in state.notes():
        console.print(f"note: {note}", markup=False)
    folders = state.complete_folders()
    if folders:
        report(folders, state.folder)
        console.print("run folders:", *map(str, folders), sep="\n  ", markup=False)
    if unfinished:
        console.print(
            f"{len(unfinished)} of {len(cells(experiment))} cells are not complete; run them again"
            f" with --resume {state.folder}",
            markup=False,
        )
    return 1 if unfinished else 0


def _state(options: argparse.Namespace, experiment: Experiment) -> State:
    """Of a new folder, or of the one to go on with; this process is the only one that writes it."""
    if options.resume is None:
        run_id = new_run_id(wall_unix_s(), experiment.name)
        state = State.begin(options.runs_dir / run_id, experiment)
        _keep_others_out(state.folder)
        return state
    chosen: Path = options.resume
    folder = latest(options.runs_dir, experiment.name) if chosen == LATEST else chosen
    if (folder / EXPERIMENT_JSON).exists():
        _keep_others_out(folder)
    return State.resume(folder, experiment)


def _keep_others_out(folder: Path) -> None:
    """Two processes would run an experiment's cells twice and overwrite each other's record.

    Holds until this process ends, however it ends.
    """
    try:
        FolderLock(folder)
    except BlockingIOError:
        raise ExperimentError(f"{folder}: another process is running this experiment") from None
    except OSError as error:
        raise ExperimentError(f"{folder}: cannot be locked: {error.strerror}") from error


def latest(runs: Path, name: str) -> Path:
    """The folder of this experiment that was begun last: their names begin with the time."""
    found = sorted(p.parent for p in runs.glob(f"*-{name}/{EXPERIMENT_JSON}"))
    if not found:
        raise ExperimentError(f"{runs}: no experiment {name!r} was begun there")
    return found[-1]


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
    console.print(f"{experiment.name}: {experiment.description}", style="bold", markup=False)
    counts = {
        "arm": len(experiment.arms),
        "seed": len(experiment.seeds),
        "block": experiment.blocks,
    }
    sizes = ", ".join(f"{n} {name}{'s' if n > 1 else ''}" for name, n in counts.items())
    console.print(
        f"  {count} cells ({sizes}), {experiment.scenario}\n"
        f"  at most {in_words(at_most_s)} each after warm-up: {in_words(count * at_most_s)} in"
        " all, and the servers' starts",
        markup=False,
    )
    for name, values in differences(experiment).items():
        shown = ", ".join("not set" if v is None else str(v) for v in sorted(values, key=str))
        console.print(f"  arms differ in {name}: {shown}", markup=False)


def monotonic_s() -> float:
    return MonotonicClock().now_ns() / NS_PER_S


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
