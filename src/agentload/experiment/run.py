"""Runs the cells of an experiment one after another, each against a server of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentload import swarm
from agentload.experiment import in_force, readback
from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Cell, Experiment, cells
from agentload.experiment.process import Child
from agentload.experiment.reaper import Reaper
from agentload.experiment.scenarios import set_options
from agentload.experiment.server import Around, Served, start
from agentload.experiment.state import CellState, InForce, State

LOCUSTFILE = Path(swarm.__file__).with_name(
    "locustfile.py"
)  # `locust -f`, wherever we are installed
STOP_GRACE_S = 15.0
POLL_S = 0.5
PROBE_TRIES = 3


class Progress(Protocol):
    """Who is told how the experiment goes: the terminal, or a test."""

    def cell_starts(self, cell: Cell, total: int) -> None: ...
    def examining(self, cell: Cell) -> None: ...
    def loading(self, cell: Cell, folder: Path, elapsed_s: float) -> None: ...
    def cell_ends(self, cell: Cell, state: CellState) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What running needs from outside, so that a test can stand in for time."""

    sleep: Callable[[float], None]
    now_s: Callable[[], float]
    folder: Path  # of the experiment file
    reaper: Reaper | None = None
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
        except NotInForceError as error:
            state.ended(cell, None, str(error))
            outcome = "refused"
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
    log = state.server_log(cell)
    served = start(experiment, cell.arm, Around(around.folder, log, around.sleep, around.reaper))
    try:
        progress.examining(cell)
        found = examined(experiment, cell, served, log, state)
        state.served(cell, served, found)
        if found.faults:
            raise NotInForceError("\n".join(found.faults))
        command = locust_command(
            around.locust, cell, served, scenario, folder, state.settings_file(cell)
        )
        command += dcgm_option(experiment)
        load = Child(
            command,
            state.load_log(cell),
            _load_environment(served),
            cpus=served.load_cpus,
            reaper=around.reaper,
        )
        code = _wait(load, cell, folder, progress, around)
    finally:
        served.end()
    state.ended(cell, code, None if code == 0 else load.last_lines())
    return "complete" if code == 0 else "failed"


class NotInForceError(ExperimentError):
    """The server is not what the arm asked for; the text says in what."""


def examined(
    experiment: Experiment, cell: Cell, served: Served, log: Path, state: State
) -> InForce:
    """Read back what is in force, and hold it against the arm and the other arms' servers."""
    readings = readback.readings(
        served.base_url, log if served.owns_log else None, served.wished.keys()
    )
    settings = in_force.settings_of(readings)
    faults = in_force.not_in_force(served.wished, readings)
    probe: dict[str, Any] = {}
    if experiment.target.probe and not faults:
        probe, contradiction = _probed(served, settings)
        faults += [contradiction] if contradiction else []
    if probe.get("effective") is not None:  # where nothing else tells, the trial does
        settings.setdefault("enable_chunked_prefill", str(probe["effective"]))
    unlike = in_force.unlike(
        cell.arm.name, settings, state.found_by_arm(), experiment.vary, experiment.accept
    )
    faults += [f"unlike the servers before: {text}" for text in unlike.faults]
    trusted = in_force.taken_on_trust(experiment.vary, settings)
    notes = [*unlike.notes, *(f"{flag}: the server tells nothing of it" for flag in trusted)]
    if served.forwarded:
        notes.append("reached by kubectl port-forward, which is part of every time measured")
    return InForce(settings, {r.name: r.source for r in readings}, probe, notes, faults)


def _probed(served: Served, settings: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """The trial, and what it contradicts. Only what is seen each time is a contradiction: a
    client that was not scheduled sees gaps that no server made."""
    tokens = in_force.probe_tokens(settings, served.wished)
    if tokens is None:
        return {"effective": None, "why_not": "no prompt that fits has several chunks"}, None
    for _ in range(PROBE_TRIES):
        probe = readback.probe_chunking(served.base_url, served.model, tokens, served.load_cpus)
        contradiction = in_force.probe_contradicts(served.wished, probe)
        if contradiction is None:
            break
    return probe, contradiction


def dcgm_option(experiment: Experiment) -> list[str]:
    """The exporter's page, for the load to scrape; one with a key comes from the environment."""
    url = experiment.target.dcgm_url
    return [] if url is None else ["--dcgm-url", url]


def locust_command(
    locust: Iterable[str],
    cell: Cell,
    served: Served,
    scenario: Path,
    folder: Path,
    settings: Path,
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
        *("--server-settings", str(settings)),
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
