"""From a planned turn with its stream's stamps to the rows that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    def at_s(instant_ns: int | None) -> float | None:
        return None if instant_ns is None else clock.seconds(instant_ns)

    stamps = result.chunk_ns
    first_s, last_s = at_s(stamps[0] if stamps else None), at_s(stamps[-1] if stamps else None)
    send_start_s, send_end_s = at_s(result.send_start_ns), at_s(result.send_end_ns)
    intended_s = clock.seconds(context.intended_start_ns)
    call_s = clock.seconds(result.call_start_ns)
    ttft_s = tm.ttft_s(send_start_s, first_s)
    server = result.server_times or ServerTimes()
    usable_s = [] if trace is None else tm.usable_gaps_s(trace.gaps_us, trace.gap_marks)
    gaps = tm.gap_figures(usable_s, context.stall_rule)
    return TurnRecord(
        run_id=context.run_id,
        worker_id=context.worker_id,
        session_id=turn.session_id,
        parent_session_id=turn.parent_session_id,
        turn_index=turn.turn_index,
        turn_class=turn.turn_class,
        request_id=context.request_id,
        stage=context.stage,
        intended_start_s=intended_s,
        call_start_s=call_s,
        send_start_s=send_start_s,
        send_end_s=send_end_s,
        headers_s=at_s(result.headers_ns),
        first_chunk_s=first_s,
        last_chunk_s=last_s,
        end_s=at_s(result.end_ns),
        lag_s=tm.lag_s(intended_s, call_s),
        ttft_s=ttft_s,
        ttfo_s=tm.ttfo_s(send_start_s, at_s(result.first_output_ns)),
        tpot_s=tm.tpot_s(first_s, last_s, result.output_tokens),
        itl_p50_s=gaps.itl_p50_s,
        itl_p99_s=gaps.itl_p99_s,
        itl_max_s=gaps.itl_max_s,
        jitter_s=gaps.jitter_s,
        stall_count=gaps.stall_count,
        e2e_s=tm.e2e_s(send_start_s, at_s(result.end_ns)),
        prompt_tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        planned_prompt_tokens=turn.planned_prompt_tokens,
        planned_prefix_tokens=turn.planned_prefix_tokens,
        output_tokens=result.output_tokens,
        reasoning_tokens=result.reasoning_tokens,
        output_chunks=len(stamps),
        first_chunk_tokens=result.chunk_tokens[0] if result.chunk_tokens else None,
        token_source=result.token_source,
        stamp_source=result.stamp_source if stamps else None,
        merged_reads=result.merged_reads,
        append_chars=turn.append_chars,
        server_queue_s=server.queue_s,
        server_prefill_s=server.prefill_s,
        server_decode_s=server.decode_s,
        frontend_s=tm.frontend_s(
            ttft_s, tm.difference_s(send_end_s, send_start_s), server.queue_s, server.prefill_s
        ),
        turns_in_flight=context.turns_in_flight,
        replica=result.replica,
        finish_reason=result.finish_reason,
        status=result.status,
        error_class=result.error_class,
        http_status=result.http_status,
        retry_after_s=result.retry_after_s,
        attempt=context.attempt,
        flags=" ".join(result.flags) or None,
        error_text=(result.error_text or "")[:ERROR_TEXT_CHARS] or None,
    )
