"""The writer of a run folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from agentload.recording.csvfile import AppendOnlyFile, header_line, row_line
from agentload.recording.manifest import Manifest, write_manifest
from agentload.recording.record import (
    FILE_OF,
    ChunkTrace,
    LoadgenSample,
    Row,
    RunEvent,
    ScrapeSample,
    TurnRecord,
)

_ROW_TYPE_OF = {name: row_type for row_type, name in FILE_OF.items()}
SHARD_ROWS = (TurnRecord, ChunkTrace, LoadgenSample, RunEvent)  # what a worker writes


@dataclass(slots=True)
class RowCounts:
    """Rows written to each file, with those the disk refused."""

    written: dict[str, int] = field(default_factory=dict)
    refused: int = 0


class Recorder:
    """Appends rows to the CSV files of one folder.

    A row that cannot be written (full disk, folder gone) is counted in `rows.refused` and does not
    raise: a user of the load must not die of it. The first such error is kept in `first_error`.
    """

    def __init__(self, folder: Path, row_types: tuple[type, ...] = (*SHARD_ROWS, ScrapeSample)):
        self.folder = folder
        self.rows = RowCounts()
        self.first_error: str | None = None
        self._files = {
            FILE_OF[t]: AppendOnlyFile(folder / FILE_OF[t], header_line(t)) for t in row_types
        }

    def record(self, row: Row) -> None:
        self.append(FILE_OF[type(row)], row_line(row), rows=1)

    def append(self, file_name: str, lines: bytes, rows: int) -> bool:
        """Append ready lines; False when the disk refused them."""
        try:
            self._files[file_name].append(lines)
        except OSError as error:
            self.rows.refused += rows
            self.first_error = self.first_error or f"{file_name}: {error.strerror}"
            return False
        self.rows.written[file_name] = self.rows.written.get(file_name, 0) + rows
        return True

    @property
    def file_names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def close(self) -> None:
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:
                self.first_error = self.first_error or f"{file.path.name}: {error.strerror}"


class RunFolderError(Exception):
    """The run folder cannot be made; the text says which and why."""


def create_run_folder(root: Path, manifest: Manifest) -> Path:
    """`root/<run_id>` with its manifest in state `running`; never an existing folder."""
    folder = root / manifest.run_id
    if os.path.lexists(folder):
        raise RunFolderError(
            f"run folder {folder} exists: give another --run-id or another --run-dir"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise RunFolderError(
            f"run folder {folder} cannot be made ({error.strerror}): "
            "give a --run-dir that can be written"
        ) from None
    write_manifest(folder, manifest)
    return folder


def complete_rows(path: Path, offset: int) -> tuple[bytes, int]:
    """The whole lines of a file from a byte offset on, with their number; a cut tail stays out."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    lines = data[: data.rfind(b"\n") + 1]
    return lines, lines.count(b"\n")
