"""Reading a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from agentload.recording.record import (
    CHUNKS_CSV,
    EVENTS_CSV,
    LOADGEN_CSV,
    SCRAPE_CSV,
    TURNS_CSV,
    LoadgenSample,
    RunEvent,
    TurnRecord,
)
from analysis import redact
from analysis.csv_rows import ReadReport, columns_of
from analysis.csv_table import read_table
from analysis.faults import BadInputError, Fault, FaultLog, describe
from analysis.manifest import Manifest, load_manifest

TURN_VALUES = {
    "turn_class": frozenset({"cold", "tool", "user", "child", "rebuild"}),
    "status": frozenset({"success", "error", "aborted"}),
}
INSTANTS = (
    "intended_start_s", "call_start_s", "send_start_s", "send_end_s", "headers_s",
    "first_chunk_s", "last_chunk_s", "end_s",
)  # fmt: skip
LONGEST_RUN_S = 30 * 86_400.0
SLACK_S = 3600.0  # a worker that lost its master goes on for a while
FREE_TEXT = ("error_text", "detail")  # written by servers and people: may hold anything


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder. Numbers are float64 with NaN = not measured, text is categorical.

    `turns` has the columns of `TurnRecord` and `file_row`, in the order of the file; `notes` say
    what was torn, dropped or missing while reading.
    """

    path: Path
    manifest: Manifest
    turns: pd.DataFrame
    loadgen: pd.DataFrame
    events: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def chunks_path(self) -> Path | None:
        return _existing(self.path, CHUNKS_CSV)

    @property
    def scrape_path(self) -> Path | None:
        return _existing(self.path, SCRAPE_CSV)

    @property
    def finished(self) -> bool:
        return self.manifest.state == "complete"


@dataclass(slots=True)
class _Reading:
    folder: Path
    finished: bool
    log: FaultLog = field(default_factory=FaultLog)
    notes: list[str] = field(default_factory=list)


def load_run(folder: Path, *, keep_good_rows: bool = False) -> Run:
    """Open a run folder.

    Every fault of the manifest is raised at once, then every fault of the CSV files, as
    `BadInputError`. With `keep_good_rows` faulty rows are left out and counted in `notes`; a
    faulty manifest or header stays an error. A torn last line is never a fault.
    """
    folder = Path(folder)
    manifest = load_manifest(folder)
    reading = _Reading(folder, manifest.state == "complete")
    turns = _table(reading, TURNS_CSV, TurnRecord, _turn_checks(manifest))
    loadgen = _table(reading, LOADGEN_CSV, LoadgenSample)
    events = _table(reading, EVENTS_CSV, RunEvent)
    if not keep_good_rows:
        _with_hint(reading.log)
    elif reading.log.count:
        more = reading.log.count - len(reading.log.shown)
        reading.notes.append("rows left out: " + describe(reading.log.shown, more))
    if manifest.state != "complete":
        reading.notes.insert(
            0, f"the run is {manifest.state}: what was recorded until then is here"
        )
    return Run(folder, manifest, turns, loadgen, events, tuple(reading.notes))


def _with_hint(log: FaultLog) -> None:
    try:
        log.raise_if_any()
    except BadInputError as error:
        hint = Fault("--keep-good-rows", "leaves faulty rows out and counts them")
        raise BadInputError([*error.faults, hint], error.more) from None


def _existing(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


Check = Callable[[pd.DataFrame, FaultLog], pd.DataFrame]


def _table(reading: _Reading, name: str, record: type, check: Check | None = None) -> pd.DataFrame:
    path = _existing(reading.folder, name)
    columns = columns_of(record, TURN_VALUES if record is TurnRecord else None)
    if path is None:
        reading.notes.append(f"{name} is missing")
    report = ReadReport()
    frame = read_table(path, columns, reading.log, report, finished=reading.finished)
    if check is not None:
        frame = check(frame, reading.log)
    if report.truncated_lines:
        reading.notes.append(f"{name}: {report.truncated_lines} torn line at the end left out")
    for column in FREE_TEXT:
        if column in frame:
            frame[column] = _redacted(frame[column])
    return frame


def _redacted(column: pd.Series) -> pd.Series:
    """Free text without secrets; categories may become equal, so they are built again."""
    return column.astype(object).map(redact.text, na_action="ignore").astype("category")


def _turn_checks(manifest: Manifest) -> Check:
    def check(turns: pd.DataFrame, log: FaultLog) -> pd.DataFrame:
        foreign = (turns["run_id"] != manifest.run_id).to_numpy()
        double = turns.duplicated(["request_id", "attempt"]).to_numpy()
        for i in np.flatnonzero(foreign).tolist():
            text = f"a row of another run; this folder is {manifest.run_id}"
            log.add(_turn_fault(turns, i, "run_id", text))
        for i in np.flatnonzero(double & ~foreign).tolist():
            log.add(_turn_fault(turns, i, "request_id", "the same request was there before"))
        jumped = _outside_the_run(turns, manifest, log)
        bad = foreign | double | jumped
        return turns[~bad].reset_index(drop=True) if bad.any() else turns

    return check


def _outside_the_run(turns: pd.DataFrame, manifest: Manifest, log: FaultLog) -> np.ndarray:
    """Rows with an instant no run has, as after a jump of a clock; one would stretch the window."""
    end_s = LONGEST_RUN_S if manifest.ended_s is None else manifest.ended_s + SLACK_S
    text = f"{-SLACK_S:.0f} to {end_s:.0f} s of the run are possible: a clock jumped"
    bad = np.zeros(len(turns), dtype=bool)
    for column in INSTANTS:
        instants = turns[column].to_numpy()
        for i in np.flatnonzero((instants > end_s) | (instants < -SLACK_S)).tolist():
            if not bad[i]:
                log.add(_turn_fault(turns, i, column, text))
            bad[i] = True
    return bad


def _turn_fault(turns: pd.DataFrame, i: int, column: str, text: str) -> Fault:
    row = int(turns["file_row"].iloc[i])
    return Fault(TURNS_CSV, text, row, column, str(turns[column].iloc[i]))
