"""The rows of a run folder: names, units and order of their columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

SCHEMA_VERSION = 1

TURNS_CSV = "turns.csv"
CHUNKS_CSV = "chunks.csv"
SCRAPE_CSV = "scrape.csv"
LOADGEN_CSV = "loadgen.csv"
EVENTS_CSV = "events.csv"
MANIFEST_JSON = "manifest.json"

RunState = Literal["running", "complete", "interrupted"]
Verdict = Literal["valid", "suspect", "invalid"]
RowsOn = Literal["master", "worker"]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One request with its stream. Instants are seconds since the run's start; None = not measured.

    The columns of `turns.csv`, in this order. Formulas: docs/metrics.md.
    """

    run_id: str
    worker_id: str
    session_id: str
    parent_session_id: str | None
    turn_index: int
    turn_class: str  # cold, tool, user, child, rebuild
    request_id: str
    stage: str | None
    intended_start_s: float
    call_start_s: float  # the user asks the client to send
    send_start_s: float | None
    send_end_s: float | None
    headers_s: float | None
    first_chunk_s: float | None
    last_chunk_s: float | None
    end_s: float | None
    lag_s: float  # call start minus intended start
    ttft_s: float | None
    ttfo_s: float | None
    tpot_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    itl_max_s: float | None
    jitter_s: float | None
    stall_count: int | None
    e2e_s: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    planned_prompt_tokens: int | None
    planned_prefix_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    output_chunks: int
    first_chunk_tokens: int | None
    token_source: str | None  # usage, events
    stamp_source: str | None  # kernel, user
    merged_reads: int | None
    append_chars: int
    server_queue_s: float | None
    server_prefill_s: float | None
    server_decode_s: float | None
    frontend_s: float | None
    turns_in_flight: int | None  # of this worker, at the call, this one not counted
    replica: str | None
    finish_reason: str | None
    status: str  # success, error, aborted
    error_class: str | None
    http_status: int | None
    retry_after_s: float | None
    attempt: int  # 1 for the first try of a turn
    flags: (
        str | None
    )  # space-separated: multi_token_chunks buffered_stream usage_missing clock_step
    error_text: str | None  # shortened; no ids, no secrets


@dataclass(frozen=True, slots=True)
class ChunkTrace:
    """The token chunks of one turn: enough to recompute every gap and to align it in time.

    A row of `chunks.csv`. `gaps_us` are whole microseconds between successive token chunks,
    `chunk_tokens` the tokens of every chunk where the server says (one more than there are gaps),
    `gap_marks` one character for each gap: `.` usable, `m` merged (both chunks came in one read),
    `l` the client itself was late during the gap; empty when all are usable.
    """

    request_id: str
    first_chunk_s: float
    gaps_us: tuple[int, ...]
    chunk_tokens: tuple[int, ...] | None
    gap_marks: str


@dataclass(frozen=True, slots=True)
class ScrapeSample:
    """One sample of a server's `/metrics` page; a row of `scrape.csv`. `labels` is JSON."""

    time_s: float
    endpoint: str
    metric: str
    labels: str
    value: float


@dataclass(frozen=True, slots=True)
class LoadgenSample:
    """What one worker was like in one second; a row of `loadgen.csv`."""

    time_s: float
    worker_id: str
    cpu_share: float  # of one core, this process
    lag_p50_s: float | None  # event loop lateness within the second
    lag_max_s: float | None
    users: int
    turns_in_flight: int
    rows_queued: int
    rows_lost: int


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened once; a row of `events.csv`."""

    time_s: float
    kind: str
    worker_id: str | None
    detail: str


Row = TurnRecord | ChunkTrace | ScrapeSample | LoadgenSample | RunEvent

FILE_OF: dict[type, str] = {
    TurnRecord: TURNS_CSV,
    ChunkTrace: CHUNKS_CSV,
    ScrapeSample: SCRAPE_CSV,
    LoadgenSample: LOADGEN_CSV,
    RunEvent: EVENTS_CSV,
}


def columns(row_type: type) -> tuple[str, ...]:
    """The header of the file that holds rows of this type."""
    return tuple(f.name for f in fields(row_type))


def csv_values(row: Row) -> list[str]:
    """The row as text, in column order; None is the empty field, never 0."""
    return [_text(getattr(row, name)) for name in columns(type(row))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"  # microseconds: below the stamps' own error of 7-50 us
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)
