"""The row of a turn against the definitions of docs/metrics.md, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentload.client.result import ServerTimes, StreamResult
from agentload.clock import RunClock
from agentload.recording.turn_rows import TurnContext, chunk_trace, gap_marks, turn_rows
from agentload.turn_metrics import StallRule
from agentload.workload.turn import Turn

MS = 1_000_000
START_NS = 5_000 * MS
CLOCK = RunClock(START_NS, 1_700_000_000.0)

TURN = Turn(
    session_id="s000007",
    parent_session_id=None,
    turn_index=3,
    turn_class="tool",
    wait_kind="tool",
    wait_s=0.3,
    keep_messages=9,
    append=(),
    append_chars=1400,
    output_tokens=5,
    planned_prompt_tokens=100_350,
    planned_prefix_tokens=100_000,
)
CONTEXT = TurnContext(
    run_id="r1",
    worker_id="w0",
    request_id="q1",
    stage="steady",
    intended_start_ns=START_NS + 1_000 * MS,
    turns_in_flight=2,
    attempt=1,
    stall_rule=StallRule(),
)


def at(ms: float) -> int:
    return START_NS + round(ms * MS)


def streamed() -> StreamResult:
    """Called 3 ms late, written in 5 ms, first token at 1,503 ms, 5 tokens 20 ms apart."""
    return StreamResult(
        status="success",
        http_status=200,
        call_start_ns=at(1003),
        send_start_ns=at(1005),
        send_end_ns=at(1010),
        headers_ns=at(1400),
        first_output_ns=at(1503),
        end_ns=at(1590),
        chunk_ns=[at(1503), at(1523), at(1543), at(1563), at(1583)],
        merged=[False] * 5,
        stamp_source="kernel",
        prompt_tokens=100_352,
        cached_tokens=100_000,
        output_tokens=5,
        token_source="usage",
        server_times=ServerTimes(queue_s=0.1, prefill_s=0.35, decode_s=0.08),
        finish_reason="length",
    )


def test_instants_are_seconds_of_the_run_and_latencies_start_at_send_start() -> None:
    row, trace = turn_rows(TURN, streamed(), CONTEXT, CLOCK)
    assert row.intended_start_s == 1.0
    assert row.call_start_s == pytest.approx(1.003)
    assert row.lag_s == pytest.approx(0.003)
    assert row.first_chunk_s == pytest.approx(1.503)
    assert row.ttft_s == pytest.approx(0.498)
    assert row.ttfo_s == pytest.approx(0.498)
    assert row.e2e_s == pytest.approx(0.585)
    assert row.tpot_s == pytest.approx(0.020)
    assert row.itl_p50_s == pytest.approx(0.020)
    # ttft 498 - written in 5 - queue 100 - prefill 350 ms
    assert row.frontend_s == pytest.approx(0.043)
    assert (row.output_chunks, row.turns_in_flight, row.attempt) == (5, 2, 1)
    assert trace is not None
    assert trace.gaps_us == (20_000,) * 4
    assert trace.gap_marks == ""


def test_a_negative_frontend_is_kept() -> None:
    result = replace(streamed(), server_times=ServerTimes(queue_s=0.1, prefill_s=0.6))
    row, _ = turn_rows(TURN, result, CONTEXT, CLOCK)
    assert row.frontend_s == pytest.approx(-0.207)


def test_what_was_not_reached_is_empty_and_never_zero() -> None:
    refused = StreamResult(
        status="error",
        error_class="connect_error",
        error_text="refused " * 100,
        call_start_ns=at(1003),
        end_ns=at(1004),
    )
    row, trace = turn_rows(TURN, refused, CONTEXT, CLOCK)
    assert trace is None
    empty = (
        "ttft_s ttfo_s tpot_s e2e_s itl_p50_s stall_count prompt_tokens output_tokens frontend_s"
    )
    assert [getattr(row, name) for name in empty.split()] == [None] * len(empty.split())
    assert row.stamp_source is None
    assert row.end_s == pytest.approx(1.004)
    assert row.error_text is not None
    assert len(row.error_text) == 300


def test_the_first_chunk_after_a_merged_pair_counts_again() -> None:
    result = replace(streamed(), merged=[False, False, True, False, False])
    assert gap_marks(result, ()) == ".m.."


def test_a_freeze_spoils_stamps_of_the_program_and_not_those_of_the_kernel() -> None:
    freeze = [(at(1530), at(1550))]  # within the second gap, 1523 to 1543, and the third
    kernel = streamed()
    user = replace(streamed(), stamp_source="user")
    assert gap_marks(kernel, freeze) == "...."
    assert gap_marks(user, freeze) == ".ll."


def test_a_freeze_spoils_the_gap_before_chunks_that_waited_together() -> None:
    freeze = [(at(1530), at(1561))]
    waited = replace(streamed(), merged=[False, False, False, True, False])
    assert gap_marks(waited, freeze) == ".lm."
    assert gap_marks(waited, ()) == "..m."


def test_marked_gaps_stay_out_of_the_gap_figures() -> None:
    stamps = [at(1000 + 20 * i) for i in range(30)] + [at(1000 + 20 * 29 + 900)]
    result = replace(streamed(), chunk_ns=stamps, merged=[], stamp_source="user")
    clean, _ = turn_rows(TURN, result, CONTEXT, CLOCK)
    late, _ = turn_rows(TURN, result, CONTEXT, CLOCK, [(at(1600), at(2400))])
    assert clean.stall_count == 1
    assert clean.itl_max_s == pytest.approx(0.9)
    assert late.stall_count == 0
    assert late.itl_max_s == pytest.approx(0.02)


def test_the_trace_carries_tokens_only_where_the_server_said_them() -> None:
    assert chunk_trace(StreamResult(), "q", CLOCK) is None
    result = replace(streamed(), chunk_tokens=[2, 1, 1, 1, 3])
    row, trace = turn_rows(TURN, result, CONTEXT, CLOCK)
    assert trace is not None
    assert trace.chunk_tokens == (2, 1, 1, 1, 3)
    assert row.first_chunk_tokens == 2
