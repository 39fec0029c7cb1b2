"""OpenTelemetry GenAI spans: OTLP JSON, or one span object a line as the Python SDK prints it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentload.workload.traces.fields import LineError, instant_s, integer, items, word
from agentload.workload.traces.reading import Report, json_objects
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Kind, Request, Sequence

_MODEL_CALLS = ("chat", "text_completion", "generate_content")
_NS = 1_000_000_000


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """Spans of model calls are calls; the session is the conversation, else the trace.

    A call that follows an `execute_tool` span of its conversation carries a tool's result.
    """
    sequence = Sequence(report)
    used_tool: set[str] = set()
    for place, item in json_objects(path, report):
        for span in _spans(item):
            try:
                attributes = _attributes(span)
                operation = attributes.get("gen_ai.operation.name")
                session = _session(span, attributes)
                if operation == "execute_tool":
                    used_tool.add(session)
                if operation not in _MODEL_CALLS:
                    continue
                kind: Kind = "tool" if session in used_tool else "human"
                yield sequence.next(_request(session, kind, span, attributes))
                used_tool.discard(session)
            except LineError as error:
                report.reject(place, str(error))


def _spans(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "resourceSpans" not in item:
        yield item
        return
    for resource in items(item, "resourceSpans"):
        for scope in items(resource, "scopeSpans"):
            yield from items(scope, "spans")


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Attributes as a mapping; OTLP has them as a list of {key, value: {stringValue: ...}}."""
    found = span.get("attributes") or {}
    if isinstance(found, dict):
        return found
    try:
        return {
            entry["key"]: next(iter(entry["value"].values()), None)
            for entry in found
            if isinstance(entry["value"], dict)
        }
    except (KeyError, TypeError):
        raise LineError("attributes are not as OTLP has them") from None


def _session(span: dict[str, Any], attributes: dict[str, Any]) -> str:
    if attributes.get("gen_ai.conversation.id"):
        return word(attributes, "gen_ai.conversation.id")
    context = span.get("context")
    if isinstance(context, dict) and context.get("trace_id"):
        return word(context, "trace_id")
    return word(span, "traceId")


def _request(session: str, kind: Kind, span: dict[str, Any], attributes: dict[str, Any]) -> Request:
    prompt = integer(attributes, "gen_ai.usage.input_tokens", low=1)
    cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
    return Request(
        session=session,
        prompt_tokens=prompt,
        output_tokens=integer(attributes, "gen_ai.usage.output_tokens"),
        kind=kind,
        keep_tokens=None
        if cached is None
        else min(prompt, integer(attributes, "gen_ai.usage.cache_read.input_tokens")),
        start_s=_time_s(span, "startTimeUnixNano", "start_time"),
        end_s=_time_s(span, "endTimeUnixNano", "end_time"),
    )


def _time_s(span: dict[str, Any], nano: str, iso: str) -> float:
    value = span.get(nano)
    if isinstance(value, str | int) and str(value).isdecimal():
        return int(value) / _NS
    return instant_s(span.get(iso), iso)
