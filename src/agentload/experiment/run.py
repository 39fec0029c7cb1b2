"""Runs the cells of an experiment one after another, each against a server of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentload import swarm
from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Cell, Experiment, cells
from agentload.experiment.process import Child
from agentload.experiment.scenarios import set_options
from agentload.experiment.server import Served, start
from agentload.experiment.state import CellState, State

LOCUSTFILE = Path(swarm.__file__).with_name(
    "locustfile.py"
)  # `locust -f`, wherever we are installed
STOP_GRACE_S = 15.0
POLL_S = 0.5


class Progress(Protocol):
    """Who is told how the experiment goes: the terminal, or a test."""

    def cell_starts(self, cell: Cell, total: int) -> None: ...
    def loading(self, cell: Cell, folder: Path, elapsed_s: float) -> None: ...
    def cell_ends(self, cell: Cell, state: CellState) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What running needs from outside, so that a test can stand in for time."""

    sleep: Callable[[float], None]
    now_s: Callable[[], float]
    locust: tuple[str, ...] = (sys.executable, "-m", "locust")


def run(
    experiment: Experiment,
    scenario: Path,
    state: State,
    progress: Progress,
    around: Surroundings,
) -> None:
    """Run every cell that is not complete yet; a failed cell is recorded and the next one runs.

    KeyboardInterrupt ends the load in order (its run folder says `interrupted`), then the server,
    records the cell as interrupted and goes on up.
    """
    planned = cells(experiment)
    for cell in planned:
        if state.of(cell) == "complete":
            continue
        progress.cell_starts(cell, len(planned))
        state.record(cell, "running")
        try:
            outcome = _run_cell(experiment, cell, scenario, state, progress, around)
        except KeyboardInterrupt:
            state.record(cell, "interrupted")
            raise
        except ExperimentError as error:  # this server did not start; the others still may
            state.ended(cell, None, str(error))
            outcome = "failed"
        state.record(cell, outcome)
        progress.cell_ends(cell, outcome)


def _run_cell(
    experiment: Experiment,
    cell: Cell,
    scenario: Path,
    state: State,
    progress: Progress,
    around: Surroundings,
) -> CellState:
    folder = state.fresh_folder(cell)
    served = start(experiment, cell.arm, state.server_log(cell), around.sleep)
    try:
        state.served(cell, served)
        command = locust_command(around.locust, cell, served, scenario, folder)
        load = Child(command, state.load_log(cell), _load_environment(served))
        code = _wait(load, cell, folder, progress, around)
    finally:
        served.end()
    state.ended(cell, code, None if code == 0 else load.last_lines())
    return "complete" if code == 0 else "failed"


def locust_command(
    locust: Iterable[str], cell: Cell, served: Served, scenario: Path, folder: Path
) -> list[str]:
    """The plain Locust command of one cell; an operator could type the same."""
    return [
        *locust,
        *("-f", str(LOCUSTFILE)),
        "--headless",
        "--only-summary",
        *("--exit-code-on-error", "0"),  # failed turns are a result, and the analysis judges them
        *("--scenario", str(scenario)),
        *set_options(cell.arm.scenario),
        *("--host", served.base_url),
        *("--run-dir", str(folder.parent)),
        *("--run-id", folder.name),
        *("--arm", cell.arm.name),
        *("--seed", str(cell.seed)),
        *("--run-salt", f"seed{cell.seed}"),  # the same prompts in every arm: its server is new
    ]


def _load_environment(served: Served) -> Mapping[str, str]:
    return {"OPENAI_MODEL": served.model, "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "-")}


def _wait(load: Child, cell: Cell, folder: Path, progress: Progress, around: Surroundings) -> int:
    started_s = around.now_s()
    try:
        while load.exit_code is None:
            progress.loading(cell, folder, around.now_s() - started_s)
            around.sleep(POLL_S)
    except KeyboardInterrupt:
        load.interrupt()
        if load.wait(STOP_GRACE_S) is None:
            load.end(1.0)
        raise
    finally:
        load.end(1.0)
    code = load.exit_code
    assert code is not None
    return code
