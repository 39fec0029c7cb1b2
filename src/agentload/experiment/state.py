"""The experiment's own record: which cell is where, so that it can be resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from agentload.atomic_file import replace_json
from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Cell, Experiment, cells
from agentload.recording.record import MANIFEST_JSON

SCHEMA_VERSION = 1
EXPERIMENT_JSON = "experiment.json"

# refused: the server was not what the arm asked for, so no load was sent to it
CellState = Literal["planned", "running", "complete", "failed", "interrupted", "refused"]


class ServedLike(Protocol):
    """What the record keeps of a server."""

    @property
    def base_url(self) -> str: ...
    @property
    def wished(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class InForce:
    """What a server runs with: setting -> value and -> who told it, the trial of chunked prefill.

    `faults` are why the cell is not run, `notes` what a reader of the comparison has to know.
    """

    settings: dict[str, str]
    sources: dict[str, str]
    probe: dict[str, Any]
    notes: list[str]
    faults: list[str]


@dataclass(slots=True)
class CellRecord:
    """One cell: its run folder is named after the try that is counted."""

    arm: str
    block: int
    seed: int
    state: CellState = "planned"
    tries: int = 0
    run_id: str | None = None
    exit_code: int | None = None
    last_lines: str | None = None
    server_wished: dict[str, Any] = field(default_factory=dict)
    server_found: dict[str, Any] = field(default_factory=dict)
    server_sources: dict[str, str] = field(default_factory=dict)
    server_probe: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class State:
    """`experiment.json` beside the run folders; replaced in one step at every change."""

    def __init__(self, folder: Path, plan: dict[str, Any], records: list[CellRecord]) -> None:
        self.folder = folder
        self._plan = plan
        self._records = records

    @classmethod
    def begin(cls, folder: Path, experiment: Experiment) -> State:
        """A new folder; it must not exist, so that no earlier result is written over."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ExperimentError(
                f"{folder} exists: give --resume {folder} to go on with it"
            ) from None
        except OSError as error:
            raise ExperimentError(f"{folder} cannot be made: {error.strerror}") from None
        records = [CellRecord(c.arm.name, c.block, c.seed) for c in cells(experiment)]
        state = cls(folder, experiment.model_dump(mode="json"), records)
        state._save()
        return state

    @classmethod
    def resume(cls, folder: Path, experiment: Experiment) -> State:
        """The record of an experiment that did not end; the plan must be the same one."""
        path = folder / EXPERIMENT_JSON
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            plan, records = data["plan"], [CellRecord(**one) for one in data["cells"]]
            version = data["schema_version"]
        except OSError as error:
            raise ExperimentError(f"{path}: {error.strerror}: nothing to resume there") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{path}: not an experiment's record ({error})") from None
        if version != SCHEMA_VERSION:
            raise ExperimentError(
                f"{path}: schema_version is {version!r}, this version reads {SCHEMA_VERSION}"
            )
        if plan != experiment.model_dump(mode="json"):
            raise ExperimentError(
                f"{path}: was begun with another plan; resume it with the unchanged experiment"
                " file, or begin anew without --resume"
            )
        return cls(folder, plan, records)

    def of(self, cell: Cell) -> CellState:
        return self._records[cell.index].state

    def fresh_folder(self, cell: Cell) -> Path:
        """The run folder of the cell's next try; an earlier try's folder stays as it is."""
        record = self._records[cell.index]
        record.tries += 1
        record.run_id = cell.run_id if record.tries == 1 else f"{cell.run_id}.try{record.tries}"
        self._save()
        return self.folder / record.run_id

    def server_log(self, cell: Cell) -> Path:
        return self._log(cell, "server")

    def load_log(self, cell: Cell) -> Path:
        return self._log(cell, "load")

    def settings_file(self, cell: Cell) -> Path:
        """What is in force at the cell's server, for the load to put into its manifest."""
        record = self._records[cell.index]
        return self.folder / f"{record.run_id or cell.run_id}.settings.json"

    def served(self, cell: Cell, served: ServedLike, found: InForce) -> None:
        record = self._records[cell.index]
        record.server_wished, record.server_found = dict(served.wished), dict(found.settings)
        record.server_sources, record.server_probe = dict(found.sources), dict(found.probe)
        record.notes = list(found.notes)
        replace_json(self.settings_file(cell), found.settings)
        self._save()

    def record(self, cell: Cell, state: CellState) -> None:
        self._records[cell.index].state = state
        self._save()

    def ended(self, cell: Cell, exit_code: int | None, last_lines: str | None) -> None:
        record = self._records[cell.index]
        record.exit_code, record.last_lines = exit_code, last_lines
        self._save()

    def complete_folders(self) -> list[Path]:
        """The run folders of the cells that are complete, in the order of the plan."""
        done = [r.run_id for r in self._records if r.state == "complete" and r.run_id]
        return [self.folder / run_id for run_id in done]

    def readable_folders(self) -> list[Path]:
        """All run folders of the cells' counted tries that can be opened, finished or not."""
        named = [self.folder / r.run_id for r in self._records if r.run_id]
        return [folder for folder in named if (folder / MANIFEST_JSON).is_file()]

    def unfinished(self) -> list[CellRecord]:
        return [record for record in self._records if record.state != "complete"]

    def found_by_arm(self) -> dict[str, dict[str, Any]]:
        """What each arm's server told of itself, of its last cell that is complete."""
        done = [r for r in self._records if r.state == "complete" and r.server_found]
        return {r.arm: r.server_found for r in done}

    def notes(self) -> list[str]:
        """What is to be known of the complete cells' servers, each thing once with its arms."""
        arms: dict[str, list[str]] = {}
        for record in self._records:
            for note in record.notes if record.state == "complete" else ():
                arms.setdefault(note, []).append(record.arm)
        return [f"{', '.join(dict.fromkeys(of))}: {note}" for note, of in arms.items()]

    def _log(self, cell: Cell, who: str) -> Path:
        record = self._records[cell.index]
        return self.folder / f"{record.run_id or cell.run_id}.{who}.log"

    def _save(self) -> None:
        data = {
            "schema_version": SCHEMA_VERSION,
            "plan": self._plan,
            "cells": [asdict(record) for record in self._records],
        }
        replace_json(self.folder / EXPERIMENT_JSON, data)
