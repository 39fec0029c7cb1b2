"""Typed columns from the rows of a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.csv_rows import Column, ReadReport, read_blocks
from analysis.faults import Fault, FaultLog

FLOATS = np.dtype("float64")
LARGEST_INT = 2.0**53  # up to here float64 holds every whole number


def numbers(
    cells: list[str], column: Column, file: str, lines: list[int], log: FaultLog, bad: set[int]
) -> np.ndarray:
    """Cells as float64, empty as NaN. Positions of bad cells go to `bad`, faults to `log`."""
    try:
        values = np.array([cell or "nan" for cell in cells], dtype=FLOATS)
    except ValueError:
        values = np.array([_number(cell) for cell in cells], dtype=FLOATS)
    if not _is_plain("".join(cells)):
        values[[not _is_plain(cell) for cell in cells]] = np.nan
    suspicious = ~np.isfinite(values)
    if column.kind == "int":
        suspicious |= (values < 0) | (values != np.floor(values)) | (values > LARGEST_INT)
    for i in np.flatnonzero(suspicious).tolist():
        if cells[i] == "" and not column.required:
            continue
        bad.add(i)
        log.add(Fault(file, _wanted(column), lines[i], column.name, cells[i]))
    return values


def _is_plain(text: str) -> bool:
    """Python reads 1_000, and digits of every script, as numbers; no writer of CSV does."""
    return text.isascii() and "_" not in text


def _number(cell: str) -> float:
    try:
        return float(cell or "nan")
    except ValueError:
        return float("nan")


def _wanted(column: Column) -> str:
    what = "a whole number, 0 or more" if column.kind == "int" else "a finite number"
    return f"{what} is needed" if column.required else f"{what}, or nothing, is needed"


def check_text(
    cells: list[str], column: Column, file: str, lines: list[int], log: FaultLog, bad: set[int]
) -> None:
    """Put the positions of text cells that are missing, not allowed or no UTF-8 into `bad`."""
    problems = {value: _text_problem(value, column) for value in set(cells)}
    if not any(problems.values()):
        return
    for i, value in enumerate(cells):
        problem = problems[value]
        if problem is not None:
            bad.add(i)
            shown = value.encode("utf-8", "backslashreplace").decode()
            log.add(Fault(file, problem, lines[i], column.name, shown))


def _text_problem(value: str, column: Column) -> str | None:
    if value == "":
        return "a value is needed" if column.required else None
    if column.allowed is not None and value not in column.allowed:
        return f"allowed are {', '.join(sorted(column.allowed))}"
    if "\0" in value:
        return "holds a NUL byte"
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        return "is not UTF-8"
    return None


class _TextColumn:
    """Text of one column, kept as codes into the list of its distinct values."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.parts: list[np.ndarray] = []

    def add(self, cells: list[str], keep: np.ndarray | None) -> None:
        index = self.index
        codes = np.array([index.setdefault(c, len(index)) for c in cells], dtype=np.int32)
        self.parts.append(codes if keep is None else codes[keep])

    def categorical(self) -> pd.Categorical:
        codes = np.concatenate(self.parts) if self.parts else np.empty(0, dtype=np.int32)
        names = list(self.index)
        if "" in self.index:  # empty is not measured
            empty = self.index[""]
            codes = np.where(codes == empty, -1, codes - (codes > empty))
            names.remove("")
        categories = pd.Index(names, dtype=object)
        return pd.Categorical.from_codes(codes, categories=categories)


def read_table(
    path: Path | None,
    columns: Sequence[Column],
    log: FaultLog,
    report: ReadReport,
    *,
    finished: bool = True,
) -> pd.DataFrame:
    """The whole file as a frame: numbers as float64 (NaN = not measured), text as categories.

    Column `file_row` is the line in the file. A row with a bad cell is left out, counted in
    `report` and named in `log`; the caller decides whether that is an error.
    Without a path the frame is empty.
    """
    number_parts: dict[str, list[np.ndarray]] = {c.name: [] for c in columns if c.kind != "text"}
    texts = {c.name: _TextColumn() for c in columns if c.kind == "text"}
    line_parts: list[np.ndarray] = []
    blocks = read_blocks(path, columns, log, report, finished=finished) if path else iter(())
    file = path.name if path else ""
    for block in blocks:
        bad: set[int] = set()
        for column in columns:
            cells = block.cells[column.name]
            if column.kind == "text":
                check_text(cells, column, file, block.lines, log, bad)
            else:
                found = numbers(cells, column, file, block.lines, log, bad)
                number_parts[column.name].append(found)
        keep = _kept(bad, len(block.lines))
        report.dropped_rows += len(bad)
        if keep is not None:
            for parts in number_parts.values():
                parts[-1] = parts[-1][keep]
        for name, text in texts.items():
            text.add(block.cells[name], keep)
        lines = np.array(block.lines, dtype=np.int64)
        line_parts.append(lines if keep is None else lines[keep])
    data: dict[str, object] = {"file_row": _joined(line_parts, np.dtype("int64"))}
    for column in columns:
        name = column.name
        # Parts are given up as soon as they are joined: both at once would double the memory.
        in_text = name in texts
        data[name] = texts.pop(name).categorical() if in_text else _joined(number_parts.pop(name))
    return pd.DataFrame(data, copy=False)


def _joined(parts: list[np.ndarray], dtype: np.dtype = FLOATS) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _kept(bad: set[int], rows: int) -> np.ndarray | None:
    if not bad:
        return None
    keep = np.ones(rows, dtype=bool)
    keep[list(bad)] = False
    return keep
