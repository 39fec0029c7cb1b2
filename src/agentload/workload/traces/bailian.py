"""Alibaba's Bailian traces: one request a line, chats linked by `parent_chat_id`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentload.workload.traces.fields import LineError, block_ids, integer, number
from agentload.workload.traces.reading import Report, json_lines
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Request, Sequence

BLOCK_SIZE = 16


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """A chain of chats is a session; a chat whose parent is not in the file begins one."""
    sequence = Sequence(report)
    root: dict[int, int] = {}
    for place, row in json_lines(path, report):
        try:
            chat = integer(row, "chat_id")
            parent = integer(row, "parent_chat_id", low=-1)
            if chat in root:
                raise LineError(f"chat_id {chat} again")
            first = root.get(parent, chat)
            call = sequence.next(
                Request(
                    session=str(first),
                    prompt_tokens=integer(row, "input_length", low=1),
                    output_tokens=integer(row, "output_length"),
                    kind="human",
                    blocks=block_ids(row),
                    block_size=BLOCK_SIZE,
                    start_s=number(row, "timestamp"),
                )
            )
        except LineError as error:
            report.reject(place, str(error))
            continue
        root[chat] = first
        if parent >= 0 and parent not in root:
            report.lose("the chats before a chat whose parent is not in the file")
        yield call
