"""A span of OpenTelemetry for each recorded turn, where Locust's `--otel` is on.

Made from the row when the turn is over, so that nothing is added to what is measured. Names follow
OpenTelemetry's semantic conventions for generative AI; what they have no name for is `agentload.*`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentload.recording.record import TurnRecord

if TYPE_CHECKING:
    from agentload.swarm.load_run import LoadRun

_NS_PER_S = 1_000_000_000
_PORTS = {"http": 80, "https": 443}
_OF_ROW = {
    "gen_ai.conversation.id": "session_id",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
    "gen_ai.response.time_to_first_chunk": "ttft_s",
    "error.type": "error_class",
    "http.response.status_code": "http_status",
    "agentload.run_id": "run_id",
    "agentload.worker_id": "worker_id",
    "agentload.session_id": "session_id",
    "agentload.parent_session_id": "parent_session_id",
    "agentload.request_id": "request_id",
    "agentload.turn_index": "turn_index",
    "agentload.turn_class": "turn_class",
    "agentload.stage": "stage",
    "agentload.status": "status",
    "agentload.attempt": "attempt",
    "agentload.tpot_s": "tpot_s",
    "agentload.itl_p50_s": "itl_p50_s",
    "agentload.itl_p99_s": "itl_p99_s",
    "agentload.jitter_s": "jitter_s",
    "agentload.stall_count": "stall_count",
    "agentload.replica": "replica",
}


def span_writer(run: LoadRun) -> Callable[[TurnRecord], None] | None:
    """What makes the spans of a run's rows; None where this process traces nothing."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")  # loaded by Locust, where --otel is on
    if sdk is None:
        return None
    from opentelemetry import trace  # an optional dependency

    provider = trace.get_tracer_provider()
    if not isinstance(provider, sdk.TracerProvider):
        return None
    fixed = target_attributes(run.settings.base_url, run.spec.model)
    wall_ns = round(run.spec.wall_start_unix_s * _NS_PER_S)
    tracer = trace.get_tracer("agentload")
    name = f"chat {run.spec.model}" if run.spec.model else "chat"

    def write(row: TurnRecord) -> None:
        begun_s, ended_s = instants_s(row)
        span = tracer.start_span(
            name,
            context=trace.set_span_in_context(trace.INVALID_SPAN),  # each turn is a trace
            kind=trace.SpanKind.CLIENT,
            attributes={**fixed, **row_attributes(row)},
            start_time=wall_ns + round(begun_s * _NS_PER_S),
        )
        if row.first_chunk_s is not None:
            at_ns = wall_ns + round(row.first_chunk_s * _NS_PER_S)
            span.add_event("first_token", timestamp=at_ns)
        if row.status == "error":
            span.set_status(trace.StatusCode.ERROR, row.error_text)
        span.end(wall_ns + round(ended_s * _NS_PER_S))

    return write


def instants_s(row: TurnRecord) -> tuple[float, float]:
    """From the first byte sent to the end, seconds of the run; of what was not reached, the last
    instant before."""
    begun_s = row.call_start_s if row.send_start_s is None else row.send_start_s
    for ended_s in (row.end_s, row.last_chunk_s, row.headers_s, row.send_end_s):
        if ended_s is not None:
            return begun_s, ended_s
    return begun_s, begun_s


def target_attributes(base_url: str, model: str | None) -> dict[str, Any]:
    """What is the same of every turn; of the address only host and port."""
    parts = urlsplit(base_url)
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",  # whose API it is
        "gen_ai.request.stream": True,
        "gen_ai.request.model": model,
        "server.address": parts.hostname,
        "server.port": parts.port or _PORTS.get(parts.scheme),
    }
    return _given(found)


def row_attributes(row: TurnRecord) -> dict[str, Any]:
    """What the row says; what was not measured is left out."""
    found = {name: getattr(row, attribute) for name, attribute in _OF_ROW.items()}
    if row.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = (row.finish_reason,)
    return _given(found)


def _given(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
