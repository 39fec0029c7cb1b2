"""TraceLab: one LLM round a line, as JSON Lines or as the replay CSV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentload.workload.traces.fields import LineError, instant_s, integer, items, number, word
from agentload.workload.traces.reading import Report, csv_rows, json_lines
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Request, Sequence

_INPUTS = ("user_message", "tool_result")
_OUTPUTS = ("text", "reasoning", "tool_call")
_CSV_NEEDED = ("prefix_len", "input_len", "output_len", "tool_wait_after_ms")


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """Rounds in the order of the file, which has to be that of each session.

    `prefix_tokens` is what the provider found in its cache, so a prefix that was evicted there
    looks like a prompt that changed.
    """
    sequence = Sequence(report)
    for place, row in json_lines(path, report):
        try:
            prefix = integer(row, "prefix_tokens")
            start_s, end_s = _times(row)
            request = Request(
                session=word(row, "session_id"),
                prompt_tokens=max(1, prefix + integer(row, "newly_append_tokens")),
                output_tokens=integer(row, "output_tokens"),
                kind="human" if row.get("first_input_event_type") == "user_message" else "tool",
                keep_tokens=prefix,
                start_s=start_s,
                end_s=end_s,
            )
            call = sequence.next(request)
        except LineError as error:
            report.reject(place, str(error))
            continue
        if call.turn_class == "rebuild":
            report.lose("a prefix evicted at the provider is replayed as a changed prompt")
        if call.call == 0 and prefix:
            report.lose("what a first round shares with other sessions is replayed as its own text")
        yield call


def _times(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """(the last input event, the last output event) in Unix seconds; None where there is none."""
    inputs, outputs = [], []
    for event in items(row, "timing_events"):
        if not isinstance(event, dict) or not event.get("timestamp"):
            continue
        if event.get("event_type") in _INPUTS:
            inputs.append(instant_s(event["timestamp"], "timestamp"))
        elif event.get("event_type") in _OUTPUTS:
            outputs.append(instant_s(event["timestamp"], "timestamp"))
    start_s = max(inputs) if inputs else min(outputs, default=None)
    return start_s, max(outputs, default=None)


def read_csv(path: Path, report: Report) -> Iterator[TraceCall]:
    """The replay CSV: `prefix_len` + `input_len` is the prompt; waits stand behind a round."""
    sequence = Sequence(report)
    waits: dict[str, float] = {}
    for place, row in csv_rows(path, report, _CSV_NEEDED):
        try:
            session = word(row, "session_id" if row.get("session_id") else "id")
            prefix = integer(row, "prefix_len")
            request = Request(
                session=session,
                prompt_tokens=max(1, prefix + integer(row, "input_len")),
                output_tokens=integer(row, "output_len"),
                keep_tokens=prefix,
                start_s=number(row, "arrival_time") / 1000 if row.get("arrival_time") else None,
                wait_s=waits.get(session),
            )
            wait_s = number(row, "tool_wait_after_ms") / 1000 if row["tool_wait_after_ms"] else 0.0
            yield sequence.next(request)
            waits[session] = wait_s
        except LineError as error:
            report.reject(place, str(error))
