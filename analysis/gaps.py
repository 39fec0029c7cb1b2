"""One pass over `chunks.csv`: pooled gaps, gap figures per turn, stalled gaps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentload.turn_metrics import MIN_GAPS_FOR_STALLS, MIN_GAPS_FOR_TURN_P99, StallRule
from analysis.chunk_rows import COLUMNS, LATE, MERGED, USABLE, ChunkRow, parsed_rows
from analysis.csv_rows import Block, ReadReport, read_blocks
from analysis.csv_table import check_text, numbers
from analysis.faults import Fault, FaultLog
from analysis.gap_histogram import US_PER_S, GapHistogram
from analysis.turn_places import Places, TurnKeys

BLOCK_TURNS = 2_000  # of about 300 gaps each: some 20 MB of arrays at a time
MAX_STALLS_KEPT = 200_000

_UNSET = 0


@dataclass(slots=True)
class TurnGaps:
    """Gap figures of each turn, in the order of the turns; NaN = too few gaps."""

    gaps: np.ndarray
    merged: np.ndarray
    late: np.ndarray
    p50_s: np.ndarray
    p99_s: np.ndarray
    max_s: np.ndarray
    std_s: np.ndarray
    stall_count: np.ndarray
    stall_s: np.ndarray

    @classmethod
    def empty(cls, turns: int) -> TurnGaps:
        return cls(*(np.full(turns, np.nan) for _ in range(9)))

    @property
    def jitter_s(self) -> np.ndarray:
        jitter: np.ndarray = self.p99_s - self.p50_s
        return jitter


@dataclass(slots=True)
class Stalls:
    """The stalled gaps: position of the turn, begin and length in seconds."""

    turn: np.ndarray
    start_s: np.ndarray
    length_s: np.ndarray


@dataclass(slots=True)
class GapPass:
    """What the pass found. Histograms are keyed by the group of the turn."""

    per_turn: TurnGaps
    raw: dict[int, GapHistogram] = field(default_factory=dict)
    per_token: dict[int, GapHistogram] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=lambda: Stalls(*(np.empty(0) for _ in range(3))))
    stalls_not_kept: int = 0
    unknown_rows: int = 0
    turns_without_token_counts: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Gaps of several turns in one array; `starts` has one entry more than there are turns."""

    turn: np.ndarray
    first_chunk_s: np.ndarray
    starts: np.ndarray
    gaps_us: np.ndarray
    marks: np.ndarray
    tokens: np.ndarray  # of the chunk that ends each gap; 0 = unknown

    @property
    def owner(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.turn)), np.diff(self.starts))


def read_gaps(
    path: Path | None,
    turns: TurnKeys,
    rule: StallRule,
    log: FaultLog,
    *,
    finished: bool = True,
) -> GapPass:
    """Stream `chunks.csv` once. Memory: the per-turn arrays and one histogram per group."""
    result = GapPass(TurnGaps.empty(len(turns.group)))
    if path is None:
        return result
    places = Places(turns)
    kept: list[Stalls] = []
    blocks = read_blocks(
        path, COLUMNS, log, ReadReport(), finished=finished, block_rows=BLOCK_TURNS
    )
    for block in blocks:
        batch = _batch(path.name, block, places, turns, log, result)
        _count(batch, turns.group, result)
        kept.append(_turn_figures(batch, rule, result.per_turn))
    _keep_longest(kept, result)
    return result


def _batch(
    file: str, block: Block, places: Places, turns: TurnKeys, log: FaultLog, result: GapPass
) -> _Batch:
    bad: set[int] = set()
    check_text(block.cells["request_id"], COLUMNS[0], file, block.lines, log, bad)
    first = numbers(block.cells["first_chunk_s"], COLUMNS[1], file, block.lines, log, bad)
    rows = parsed_rows(file, block, log, bad)
    place, surplus = places.find(block.cells["request_id"])
    for i in np.flatnonzero(surplus).tolist():
        bad.add(i)
        text = "more rows than this request had streams"
        log.add(Fault(file, text, block.lines[i], "request_id", block.cells["request_id"][i]))
    good = np.ones(len(place), dtype=bool)
    good[list(bad)] = False
    result.unknown_rows += int(((place < 0) & good).sum())
    wanted = good & (place >= 0)
    chosen = [row for row, keep in zip(rows, wanted, strict=True) if keep]
    tokens = [
        _tokens(row, turns.output_tokens[p]) for row, p in zip(chosen, place[wanted], strict=True)
    ]
    result.turns_without_token_counts += sum(1 for t in tokens if len(t) and t[0] == _UNSET)
    return _Batch(
        place[wanted],
        first[wanted],
        np.concatenate([[0], np.cumsum([len(r.gaps) for r in chosen], dtype=np.int64)]),
        _together([r.gaps for r in chosen], np.int64),
        _together([r.marks for r in chosen], np.uint8),
        _together(tokens, np.int64),
    )


def _together(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _tokens(row: ChunkRow, output_tokens: float) -> np.ndarray:
    """Tokens of the chunk after each gap: as the server says, or 1 where the counts agree."""
    n = len(row.gaps)
    if row.chunk_tokens is not None:
        return np.where(row.chunk_tokens[1:] < 1, 1, row.chunk_tokens[1:])
    one_each = n + 1 <= output_tokens <= n + 2  # the end token makes no chunk with text
    return np.full(n, 1 if one_each else _UNSET, np.int64)


def _count(batch: _Batch, group: np.ndarray, result: GapPass) -> None:
    """Add the batch's gaps to the histograms of their groups."""
    usable = batch.marks == USABLE
    gap_group = group[batch.turn][batch.owner]
    tokens = _tokens_per_read(batch)
    for key in np.unique(gap_group).tolist():
        mine = usable & (gap_group == key)
        result.raw.setdefault(key, GapHistogram()).add(batch.gaps_us[mine])
        known = mine & (tokens > 0)
        share = np.rint(batch.gaps_us[known] / tokens[known]).astype(np.int64)
        result.per_token.setdefault(key, GapHistogram()).add(share, tokens[known])


def _tokens_per_read(batch: _Batch) -> np.ndarray:
    """Tokens that arrived at the end of each gap: chunks of the same read count with the first.

    A merged gap at the begin of a turn belongs to the first chunk, which ends no gap.
    """
    own = batch.marks != MERGED
    if own.all() or not len(own):
        return batch.tokens
    running = np.cumsum(own)
    before_turn = np.concatenate([[0], running])[batch.starts[:-1]]
    in_turn = running - np.repeat(before_turn, np.diff(batch.starts))
    counted = in_turn > 0
    sums = np.bincount(running[counted] - 1, batch.tokens[counted], minlength=int(running[-1]))
    tokens: np.ndarray = np.zeros(len(own), np.int64)
    tokens[own] = sums[running[own] - 1].astype(np.int64)
    return tokens


def _turn_figures(batch: _Batch, rule: StallRule, out: TurnGaps) -> Stalls:
    """Fill the batch's turns in `out`; return their stalled gaps."""
    turns = len(batch.turn)
    owner = batch.owner
    usable = batch.marks == USABLE
    seconds = batch.gaps_us / US_PER_S
    mine, values = owner[usable], seconds[usable]
    order = np.lexsort((values, mine))
    values = values[order]
    count = np.bincount(mine, minlength=turns)
    start = np.concatenate([[0], np.cumsum(count)])[:-1]
    median = _segment_percentile(values, start, count, 0.5, 1)
    out.gaps[batch.turn] = count
    out.merged[batch.turn] = np.bincount(owner[batch.marks == MERGED], minlength=turns)
    out.late[batch.turn] = np.bincount(owner[batch.marks == LATE], minlength=turns)
    out.p50_s[batch.turn] = median
    out.p99_s[batch.turn] = _segment_percentile(values, start, count, 0.99, MIN_GAPS_FOR_TURN_P99)
    out.max_s[batch.turn] = _segment_percentile(values, start, count, 1.0, 1)
    out.std_s[batch.turn] = _segment_std(mine, seconds[usable], count)
    return _stalls(batch, owner, usable & _above(seconds, owner, median, rule), seconds, out)


def _above(
    seconds: np.ndarray, owner: np.ndarray, median: np.ndarray, rule: StallRule
) -> np.ndarray:
    threshold = np.maximum(rule.median_factor * median, rule.floor_s)
    above: np.ndarray = seconds > threshold[owner]
    return above


def _stalls(
    batch: _Batch, owner: np.ndarray, stalled: np.ndarray, seconds: np.ndarray, out: TurnGaps
) -> Stalls:
    turns = len(batch.turn)
    judged = out.gaps[batch.turn] >= MIN_GAPS_FOR_STALLS
    counts = np.bincount(owner[stalled], minlength=turns)
    sums = np.bincount(owner[stalled], seconds[stalled], minlength=turns)
    out.stall_count[batch.turn] = np.where(judged, counts, np.nan)
    out.stall_s[batch.turn] = np.where(judged, sums, np.nan)
    passed = np.cumsum(seconds)
    at_turn_start = np.concatenate([[0.0], passed])[batch.starts[:-1]]
    start_s = batch.first_chunk_s[owner] + passed - at_turn_start[owner] - seconds
    return Stalls(batch.turn[owner[stalled]], start_s[stalled], seconds[stalled])


def _segment_percentile(
    values: np.ndarray, start: np.ndarray, count: np.ndarray, q: float, fewest: int
) -> np.ndarray:
    """Percentile of each segment of `values` (sorted within segments); NaN below `fewest`."""
    out = np.full(len(count), np.nan)
    enough = count >= fewest
    position = q * (count[enough] - 1)
    low = start[enough] + np.floor(position).astype(np.int64)
    high = start[enough] + np.ceil(position).astype(np.int64)
    out[enough] = values[low] + (values[high] - values[low]) * (position - np.floor(position))
    return out


def _segment_std(owner: np.ndarray, values: np.ndarray, count: np.ndarray) -> np.ndarray:
    turns = len(count)
    out = np.full(turns, np.nan)
    enough = count >= 2
    mean = np.bincount(owner, values, minlength=turns) / np.maximum(count, 1)
    squares = np.bincount(owner, (values - mean[owner]) ** 2, minlength=turns)
    out[enough] = np.sqrt(squares[enough] / (count[enough] - 1))
    return out


def _keep_longest(parts: list[Stalls], result: GapPass) -> None:
    turn = _together([p.turn for p in parts], np.int64)
    start = _together([p.start_s for p in parts], np.float64)
    length = _together([p.length_s for p in parts], np.float64)
    result.stalls_not_kept = max(len(length) - MAX_STALLS_KEPT, 0)
    kept = np.sort(np.argsort(length)[result.stalls_not_kept :])
    result.stalls = Stalls(turn[kept], start[kept], length[kept])
