"""Mooncake's JSON Lines, with AIPerf's `session_id` and `delay`: read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from agentload.workload.traces.fields import LineError, block_ids, integer, number, word
from agentload.workload.traces.reading import Report, json_lines
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Request, Sequence

BLOCK_SIZE = 512  # of the published traces
_CHARS_PER_TOKEN = 4.0  # of `text_input` and `messages`, where no length is given


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """Lines with a `session_id` are turns of it; the others are sessions of one call.

    From the second turn on `input_length` is the whole prompt when its `hash_ids` begin as those
    of the turn before, else only what is new, as AIPerf has it.
    """
    sequence = Sequence(report)
    sizes: dict[str, tuple[int, list[int] | None]] = {}  # session -> (next history, last blocks)
    for count, (place, row) in enumerate(json_lines(path, report)):
        try:
            named = row.get("session_id") is not None
            session = word(row, "session_id") if named else f"request-{count}"
            before = sizes.get(session)
            call = sequence.next(_request(session, row, before, report))
            yield call
        except LineError as error:
            report.reject(place, str(error))
            continue
        if named:
            sizes[session] = (call.prompt_tokens + call.output_tokens, block_ids(row))
        else:
            sequence.forget(session)
            report.lose("what a request without session_id shares with others")


def _request(
    session: str, row: dict[str, Any], before: tuple[int, list[int] | None] | None, report: Report
) -> Request:
    tokens, blocks = _length(row, report), block_ids(row)
    history, seen = before or (0, None)
    whole = bool(before and blocks and seen and blocks[0] == seen[0])
    delay_s = None if row.get("delay") is None else number(row, "delay") / 1000
    return Request(
        session=session,
        prompt_tokens=tokens if whole or before is None else history + tokens,
        output_tokens=integer(row, "output_length") if row.get("output_length") is not None else 1,
        blocks=blocks if whole or before is None else None,
        keep_tokens=None if whole or before is None else history,
        block_size=BLOCK_SIZE,
        start_s=None if row.get("timestamp") is None else number(row, "timestamp") / 1000,
        wait_s=delay_s if before is not None else None,
    )


def _length(row: dict[str, Any], report: Report) -> int:
    if row.get("input_length") is not None:
        return integer(row, "input_length", low=1)
    report.lose("text: replaced by text of the scenario, its tokens taken as characters / 4")
    if isinstance(row.get("text_input"), str):
        return max(1, round(len(row["text_input"]) / _CHARS_PER_TOKEN))
    if isinstance(row.get("messages"), list):
        return max(1, round(len(orjson.dumps(row["messages"])) / _CHARS_PER_TOKEN))
    raise LineError("input_length, text_input or messages is needed")


def write(calls: Iterable[TraceCall], report: Report) -> Iterator[bytes]:
    """One line a call: what is new in its prompt, the answer's length, the wait as `delay`."""
    before: dict[str, TraceCall] = {}
    for call in calls:
        last = before.get(call.session)
        history = 0 if last is None else last.prompt_tokens + last.output_tokens
        row: dict[str, Any] = {"session_id": call.session, "output_length": call.output_tokens}
        if last is None:
            row["input_length"] = call.prompt_tokens
            row["timestamp"] = round(1000 * (call.start_s or 0.0), 3)
        else:
            row["input_length"] = max(1, call.prompt_tokens - history)
            row["delay"] = round(1000 * (call.wait_s or 0.0), 3)
            if call.prompt_tokens <= history or call.keep_tokens < last.prompt_tokens:
                report.lose("a prompt that drops part of the one before (written as an append)")
        if call.parent is not None:
            report.lose("that a subagent starts with, and is waited for by, its parent")
        before[call.session] = call
        report.calls += 1
        report.sessions += last is None
        yield orjson.dumps(row) + b"\n"
