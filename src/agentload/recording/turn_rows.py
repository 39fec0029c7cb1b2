"""From a planned turn with its stream's stamps to the rows that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from agentload import turn_metrics as tm
from agentload.client.result import ServerTimes, StreamResult
from agentload.clock import RunClock
from agentload.recording.record import ChunkTrace, TurnRecord
from agentload.workload.turn import Turn

NS_PER_US = 1_000
ERROR_TEXT_CHARS = 300

Freeze = tuple[int, int]  # from, to: monotonic nanoseconds in which the event loop stood still


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What the recorder knows of an attempt beside the turn and its stream."""

    run_id: str
    worker_id: str
    request_id: str
    stage: str | None
    intended_start_ns: int
    turns_in_flight: int
    attempt: int
    stall_rule: tm.StallRule


def turn_rows(
    turn: Turn,
    result: StreamResult,
    context: TurnContext,
    clock: RunClock,
    freezes: Sequence[Freeze] = (),
) -> tuple[TurnRecord, ChunkTrace | None]:
    """The row of `turns.csv` and, where there was a token chunk, the row of `chunks.csv`."""
    trace = chunk_trace(result, context.request_id, clock, freezes)
    return _turn_record(turn, result, context, clock, trace), trace


def chunk_trace(
    result: StreamResult, request_id: str, clock: RunClock, freezes: Sequence[Freeze] = ()
) -> ChunkTrace | None:
    """The gaps of one stream with the marks that keep wrong ones out of percentiles."""
    stamps = result.chunk_ns
    if not stamps:
        return None
    marks = gap_marks(result, freezes)
    return ChunkTrace(
        request_id=request_id,
        first_chunk_s=clock.seconds(stamps[0]),
        gaps_us=tuple(round((b - a) / NS_PER_US) for a, b in pairwise(stamps)),
        chunk_tokens=None if result.chunk_tokens is None else tuple(result.chunk_tokens),
        gap_marks="" if set(marks) <= {tm.USABLE_GAP} else marks,
    )


def gap_marks(result: StreamResult, freezes: Sequence[Freeze]) -> str:
    """One mark for each gap: merged, client late, or usable.

    A stamp the program took is late by as much as its loop stood still, so any freeze within the
    gap spoils it. A stamp of the kernel is not, unless more than one chunk waited to be read: they
    share the stamp of the last, so the gap before them is too long.
    """
    stamps, merged = result.chunk_ns, _merged_flags(result)
    marks = []
    for i in range(1, len(stamps)):
        if merged[i]:
            marks.append(tm.MERGED_GAP)
            continue
        alone = i + 1 >= len(stamps) or not merged[i + 1]
        exact = result.stamp_source == "kernel" and alone
        late = not exact and _overlaps(freezes, stamps[i - 1], stamps[i])
        marks.append(tm.LATE_GAP if late else tm.USABLE_GAP)
    return "".join(marks)


def _merged_flags(result: StreamResult) -> list[bool]:
    missing = len(result.chunk_ns) - len(result.merged)
    return result.merged + [False] * missing


def _overlaps(freezes: Sequence[Freeze], from_ns: int, to_ns: int) -> bool:
    return any(start < to_ns and end > from_ns for start, end in freezes)


def _turn_record(
    turn: Turn,
    result: StreamResult,
    context: TurnContext,
    clock: RunClock,
    trace: ChunkTrace | None,
) -> TurnRecord:
    instants = _instants(result, context, clock)
    fields: dict[str, Any] = {
        **_identity(turn, context),
        **instants,
        **_latencies(result, instants, clock),
        **_gap_columns(trace, context),
        **_server_columns(result, instants),
        **_token_columns(turn, result),
        **_outcome(result),
    }
    return TurnRecord(**fields)


def _identity(turn: Turn, context: TurnContext) -> dict[str, Any]:
    return {
        "run_id": context.run_id,
        "worker_id": context.worker_id,
        "session_id": turn.session_id,
        "parent_session_id": turn.parent_session_id,
        "turn_index": turn.turn_index,
        "turn_class": turn.turn_class,
        "request_id": context.request_id,
        "stage": context.stage,
        "turns_in_flight": context.turns_in_flight,
        "attempt": context.attempt,
    }


def _instants(
    result: StreamResult, context: TurnContext, clock: RunClock
) -> dict[str, float | None]:
    stamps = result.chunk_ns
    at_ns = {
        "intended_start_s": context.intended_start_ns,
        "call_start_s": result.call_start_ns,
        "send_start_s": result.send_start_ns,
        "send_end_s": result.send_end_ns,
        "headers_s": result.headers_ns,
        "first_chunk_s": stamps[0] if stamps else None,
        "last_chunk_s": stamps[-1] if stamps else None,
        "end_s": result.end_ns,
    }
    return {name: None if ns is None else clock.seconds(ns) for name, ns in at_ns.items()}


def _latencies(
    result: StreamResult, at_s: dict[str, float | None], clock: RunClock
) -> dict[str, float | None]:
    sent_s, first_s, last_s = at_s["send_start_s"], at_s["first_chunk_s"], at_s["last_chunk_s"]
    output_ns = result.first_output_ns
    output_s = None if output_ns is None else clock.seconds(output_ns)
    return {
        "lag_s": tm.difference_s(at_s["call_start_s"], at_s["intended_start_s"]),
        "ttft_s": tm.ttft_s(sent_s, first_s),
        "ttfo_s": tm.ttfo_s(sent_s, output_s),
        "tpot_s": tm.tpot_s(first_s, last_s, result.output_tokens),
        "e2e_s": tm.e2e_s(sent_s, at_s["end_s"]),
    }


def _gap_columns(trace: ChunkTrace | None, context: TurnContext) -> dict[str, Any]:
    usable_s = [] if trace is None else tm.usable_gaps_s(trace.gaps_us, trace.gap_marks)
    figures = asdict(tm.gap_figures(usable_s, context.stall_rule))
    figures.pop("stall_s")  # the analysis adds it up from the gaps
    return figures


def _server_columns(result: StreamResult, at_s: dict[str, float | None]) -> dict[str, float | None]:
    server = result.server_times or ServerTimes()
    written_s = tm.difference_s(at_s["send_end_s"], at_s["send_start_s"])
    ttft_s = tm.ttft_s(at_s["send_start_s"], at_s["first_chunk_s"])
    return {
        "server_queue_s": server.queue_s,
        "server_prefill_s": server.prefill_s,
        "server_decode_s": server.decode_s,
        "frontend_s": tm.frontend_s(ttft_s, written_s, server.queue_s, server.prefill_s),
    }


def _token_columns(turn: Turn, result: StreamResult) -> dict[str, Any]:
    return {
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "planned_prompt_tokens": turn.planned_prompt_tokens,
        "planned_prefix_tokens": turn.planned_prefix_tokens,
        "output_tokens": result.output_tokens,
        "reasoning_tokens": result.reasoning_tokens,
        "output_chunks": len(result.chunk_ns),
        "first_chunk_tokens": result.chunk_tokens[0] if result.chunk_tokens else None,
        "token_source": result.token_source,
        "append_chars": turn.append_chars,
    }


def _outcome(result: StreamResult) -> dict[str, Any]:
    return {
        "stamp_source": result.stamp_source if result.chunk_ns else None,
        "merged_reads": result.merged_reads,
        "replica": result.replica,
        "finish_reason": result.finish_reason,
        "status": result.status,
        "error_class": result.error_class,
        "http_status": result.http_status,
        "retry_after_s": result.retry_after_s,
        "flags": " ".join(result.flags) or None,
        "error_text": (result.error_text or "")[:ERROR_TEXT_CHARS] or None,
    }
