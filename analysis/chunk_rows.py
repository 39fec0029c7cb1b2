"""Reading the gap lists of `chunks.csv`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentload.turn_metrics import LATE_GAP, MERGED_GAP, USABLE_GAP
from analysis.csv_rows import Block, Column
from analysis.faults import Fault, FaultLog

COLUMNS = (
    Column("request_id", "text", required=True),
    Column("first_chunk_s", "float", required=True),
    Column("gaps_us", "text"),
    Column("chunk_tokens", "text"),
    Column("gap_marks", "text"),
)
MAX_GAP_US = 10**12  # 11 days: no run is as long; larger numbers overflow in sums
USABLE, MERGED, LATE = (ord(m) for m in (USABLE_GAP, MERGED_GAP, LATE_GAP))


@dataclass(frozen=True, slots=True)
class ChunkRow:
    gaps: np.ndarray
    marks: np.ndarray
    chunk_tokens: np.ndarray | None


NO_ROW = ChunkRow(np.empty(0, np.int64), np.empty(0, np.uint8), None)


def parsed_rows(file: str, block: Block, log: FaultLog, bad: set[int]) -> list[ChunkRow]:
    cells = (block.cells[name] for name in ("gaps_us", "chunk_tokens", "gap_marks"))
    rows: list[ChunkRow] = []
    for i, (gaps, tokens, marks) in enumerate(zip(*cells, strict=True)):
        row, fault = _parsed_row(gaps, tokens, marks)
        if fault is not None:
            column, value, text = fault
            bad.add(i)
            log.add(Fault(file, text, block.lines[i], column, value))
        rows.append(row)
    return rows


def _parsed_row(gaps: str, tokens: str, marks: str) -> tuple[ChunkRow, tuple[str, str, str] | None]:
    gap_values = _whole_numbers(gaps)
    if gap_values is None:
        return NO_ROW, ("gaps_us", gaps, "whole microseconds, 0 or more, are needed")
    if gap_values.max(initial=0) > MAX_GAP_US:
        return NO_ROW, ("gaps_us", gaps, f"a gap is at most {MAX_GAP_US} microseconds")
    n = len(gap_values)
    mark_values = np.frombuffer(marks.encode(), np.uint8) if marks else np.full(n, USABLE, np.uint8)
    if len(mark_values) != n or not np.isin(mark_values, (USABLE, MERGED, LATE)).all():
        return NO_ROW, ("gap_marks", marks, f"one of . m l for each of the {n} gaps is needed")
    token_values = _whole_numbers(tokens) if tokens else None
    if tokens and (token_values is None or len(token_values) != n + 1):
        return NO_ROW, ("chunk_tokens", tokens, f"{n + 1} whole numbers are needed")
    return ChunkRow(gap_values, mark_values, token_values), None


def _whole_numbers(text: str) -> np.ndarray | None:
    if not text:
        return np.empty(0, np.int64)
    try:
        values = np.fromstring(text, dtype=np.int64, sep=" ")
    except ValueError:
        return None
    whole = len(values) == text.count(" ") + 1 and bool((values >= 0).all())
    return values if whole else None
