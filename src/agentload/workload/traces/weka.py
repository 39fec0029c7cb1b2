"""Sessions of kv-cache-tester and AgentX (Weka's format): one JSON object a session.

A file holds one object, an array, or one object a line. Requests are of type `n` or `s`, or are
`subagent` entries with requests of their own; `hash_ids` are of blocks of `block_size` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentload.workload.traces.fields import LineError, block_ids, integer, items, number, word
from agentload.workload.traces.reading import Report, json_objects
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Kind, Request, Sequence


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """The calls of all sessions, each child right after the call that it hangs on."""
    for place, trace in json_objects(path, report):
        try:
            name = word(trace, "id")
            block_size = integer(trace, "block_size", low=1)
            entries = items(trace, "requests")
        except LineError as error:
            report.reject(place, str(error))
            continue
        sequence = Sequence(report, origin_s=0.0)
        report.lose("when sessions begin: each counts from its own start")
        report.lose("the size of tools and system text: the scenario's stands for it")
        yield from _entries(place, name, block_size, entries, sequence)


def _entries(
    place: str, name: str, block_size: int, entries: list[Any], sequence: Sequence
) -> Iterator[TraceCall]:
    before: dict[str, Any] = {}
    for i, entry in enumerate(entries):
        try:
            if not isinstance(entry, dict):
                raise LineError("not a JSON object")
            if entry.get("type") == "subagent":
                yield from _subagent(f"{place}, request {i}", name, block_size, entry, sequence)
                continue
            yield sequence.next(_request(name, block_size, entry, before))
            before = entry
        except LineError as error:
            sequence.report.reject(f"{place}, request {i}", str(error))


def _subagent(
    place: str, parent: str, block_size: int, entry: dict[str, Any], sequence: Sequence
) -> Iterator[TraceCall]:
    """A child with its calls; before the parent's first call there is nothing it could hang on."""
    calls = sequence.calls_of(parent)
    if calls == 0:
        raise LineError("a subagent before the first request of its session")
    name = f"{parent}/{word(entry, 'agent_id')}"
    before: dict[str, Any] = {}
    if sequence.calls_of(name):  # an agent that is asked again is another child here
        name += f"@{calls - 1}"
    for i, request in enumerate(items(entry, "requests")):
        try:
            made = _request(name, block_size, request, before, parent, calls - 1)
            yield sequence.next(made)
            before = request
        except LineError as error:
            sequence.report.reject(f"{place}, request {i} of {name}", str(error))


def _request(
    session: str,
    block_size: int,
    row: Any,
    before: dict[str, Any],
    parent: str | None = None,
    parent_call: int | None = None,
) -> Request:
    if not isinstance(row, dict):
        raise LineError("not a JSON object")
    if row.get("type") not in ("n", "s"):
        raise LineError(f"type: {row.get('type')!r} is none of 'n', 's', 'subagent'")
    start_s = number(row, "t")
    api_s = None if row.get("api_time") is None else number(row, "api_time")
    return Request(
        session=session,
        prompt_tokens=integer(row, "in", low=1),
        output_tokens=integer(row, "out"),
        kind=_kind(row, before),
        blocks=block_ids(row),
        block_size=block_size,
        start_s=start_s,
        end_s=None if api_s is None else start_s + api_s,
        parent=parent,
        parent_call=parent_call,
    )


def _kind(row: dict[str, Any], before: dict[str, Any]) -> Kind | None:
    """By what the request carries, else by why the answer before it stopped."""
    carried = items(row, "input_types")
    if carried:
        return "tool" if "tool_result" in carried else "human"
    if before.get("stop"):
        return "tool" if before["stop"] == "tool_use" else "human"
    return None
