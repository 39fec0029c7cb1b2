"""Locust's own CSV files, for people who ran plain Locust.

Locust rounds response times to about two significant digits before it forms percentiles, so they
are approximate (up to 5 %); minimum, maximum and average are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.csv_rows import Column, ReadReport, read_blocks
from analysis.faults import BadInputError, Fault, FaultLog

AGGREGATED = "Aggregated"
HTTP_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
PERCENTILES = ("50%", "66%", "75%", "80%", "90%", "95%", "98%", "99%", "99.9%", "99.99%", "100%")
ROUNDING = 0.05

_STATS = (
    "Request Count", "Failure Count", "Median Response Time", "Average Response Time",
    "Min Response Time", "Max Response Time", "Average Content Size", "Requests/s", "Failures/s",
)  # fmt: skip
_HISTORY = (
    "Timestamp", "User Count", "Requests/s", "Failures/s", "Total Request Count",
    "Total Failure Count", "Total Median Response Time", "Total Average Response Time",
    "Total Min Response Time", "Total Max Response Time", "Total Average Content Size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocustRow:
    """One row of real requests. `percentiles_ms` are rounded by Locust and cut at the maximum."""

    method: str
    name: str
    requests: int
    failures: int
    requests_per_s: float
    mean_ms: float
    min_ms: float
    max_ms: float
    percentiles_ms: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class LocustStats:
    """The rows of real requests. Percentiles of several rows are listed, never merged.

    `custom_rows` are events that scripts reported as if they were requests (TTFT, gaps): they and
    the Aggregated row that mixes them are left out of every sum.
    """

    rows: tuple[LocustRow, ...]
    custom_rows: tuple[str, ...]

    @property
    def requests(self) -> int:
        return sum(row.requests for row in self.rows)

    @property
    def failures(self) -> int:
        return sum(row.failures for row in self.rows)

    @property
    def failure_rate(self) -> float | None:
        return self.failures / self.requests if self.requests else None

    @property
    def requests_per_s(self) -> float:
        return sum(row.requests_per_s for row in self.rows)


def load_stats(path: Path) -> LocustStats:
    """Read `*_stats.csv`; raises `BadInputError` with every fault."""
    frame = _read(path, _STATS)
    wanted = frame[frame["Name"] != AGGREGATED]
    rows = [_row(values) for values in wanted.to_dict("records")]
    real = tuple(row for row in rows if row.method.upper() in HTTP_METHODS)
    custom = tuple(f"{r.method} {r.name}" for r in rows if r not in real)
    return LocustStats(real, custom)


def load_history(path: Path) -> pd.DataFrame:
    """The total rows of `*_stats_history.csv`, found by their name; N/A is NaN.

    Rows before the first finished request stay: they belong to the user ramp, not to latency.
    """
    frame = _read(path, _HISTORY)
    return frame[frame["Name"] == AGGREGATED].reset_index(drop=True)


def _read(path: Path, numbers: tuple[str, ...]) -> pd.DataFrame:
    texts = ("Type", "Name")
    columns = [Column(name, "text") for name in (*texts, *numbers, *PERCENTILES)]
    log = FaultLog()
    cells: dict[str, list[str]] = {c.name: [] for c in columns}
    lines: list[int] = []
    if not path.is_file():
        raise BadInputError([Fault(str(path), "no such file")])
    for block in read_blocks(path, columns, log, ReadReport()):
        lines += block.lines
        for name, found in block.cells.items():
            cells[name] += found
    data: dict[str, object] = {name: cells[name] for name in texts}
    for name in (*numbers, *PERCENTILES):
        data[name] = _numbers(cells[name], name, path.name, lines, log)
    log.raise_if_any()
    return pd.DataFrame(data)


def _numbers(
    cells: list[str], column: str, file: str, lines: list[int], log: FaultLog
) -> np.ndarray:
    """float64; N/A is NaN, as Locust writes it before the first finished request."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell in ("N/A", ""):
            continue
        try:
            found[i] = float(cell)
        except ValueError:
            log.add(Fault(file, "a number or N/A is needed", lines[i], column, cell))
    return found


def _row(values: dict[object, object]) -> LocustRow:
    def number(name: str) -> float:
        return float(str(values[name]))

    most = number("Max Response Time")
    cut: Callable[[float], float | None] = lambda v: None if np.isnan(v) else min(v, most)  # noqa: E731
    return LocustRow(
        method=str(values["Type"]),
        name=str(values["Name"]),
        requests=int(number("Request Count")),
        failures=int(number("Failure Count")),
        requests_per_s=number("Requests/s"),
        mean_ms=number("Average Response Time"),
        min_ms=number("Min Response Time"),
        max_ms=most,
        percentiles_ms={p: cut(number(p)) for p in PERCENTILES},
    )
