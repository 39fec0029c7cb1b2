"""What the measuring client knows about one streamed answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["success", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """vLLM's per-request times (`--enable-per-request-metrics`), in seconds.

    `prefill_s` is vLLM's `time_to_first_token_ms`, which starts when the request is scheduled and
    so leaves the queue out.
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(slots=True)
class StreamResult:
    """One attempt at one request; every instant is monotonic nanoseconds, None = not reached.

    `chunk_ns` holds one stamp per token event (an event with non-empty generated text: content,
    reasoning, or a tool call's name or argument fragment). `merged` marks the token events that
    were completed by the same socket read as the token event before them, so that their gap says
    nothing. `chunk_tokens` is given only where the server itself says how many tokens a chunk
    carries.
    """

    status: Status = "error"
    error_class: str | None = None
    error_text: str | None = None  # shortened, free of ids and secrets
    http_status: int | None = None
    retry_after_s: float | None = None

    call_start_ns: int = 0
    send_start_ns: int | None = None
    send_end_ns: int | None = None
    headers_ns: int | None = None
    first_output_ns: int | None = None  # first token event that is not reasoning
    end_ns: int | None = None  # [DONE], else the end of the stream, else the deadline

    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] | None = None
    merged: list[bool] = field(default_factory=list)
    stamp_source: Literal["kernel", "user"] = "user"
    merged_reads: int = 0
    late_merged: int = 0  # of the merged, those that had waited for a late reader

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: Literal["usage", "events"] | None = None
    server_times: ServerTimes | None = None

    finish_reason: str | None = None
    text: str = ""
    reasoning_text: str = ""
    tool_calls: tuple[dict[str, str], ...] = ()
    flags: tuple[str, ...] = ()  # multi_token_chunks, buffered_stream, usage_missing, clock_step
    replica: str | None = None
    server_request_id: str | None = None
