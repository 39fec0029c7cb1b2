"""The measured turns of a run that is going on, read from its own `turns.csv`."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from agentload.recording.record import TurnRecord, columns

_COLUMNS = columns(TurnRecord)
_STAGE, _STATUS, _TTFT = map(_COLUMNS.index, ("stage", "status", "ttft_s"))


@dataclass(slots=True)
class MeasuredTurns:
    """Counts turns of the measured stages; aborted ones are not done and do not count.

    The file is the one place where the rows of all workers are.
    """

    path: Path
    stages: frozenset[str]
    turns: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    _read_bytes: int = 0

    def read(self) -> None:
        """Take the whole lines that were appended since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        lines = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for row in csv.reader(io.StringIO(lines.decode("utf-8", "replace"))):
            self._take(row)

    def _take(self, row: list[str]) -> None:
        if row[_STAGE] not in self.stages or row[_STATUS] == "aborted":
            return
        self.turns += 1
        if row[_STATUS] == "success" and row[_TTFT]:
            self.ttfts_s.append(float(row[_TTFT]))
