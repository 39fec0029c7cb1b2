"""A finished exchange as what was measured: stamps, events, verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agentload.client import chunk
from agentload.client.answer import AnswerFold, End
from agentload.client.errors import RequestFailure, of_error_event
from agentload.client.result import StreamResult
from agentload.client.sse import SseDecoder, SseError, is_event_stream
from agentload.client.stamps import Reads, stamp_reads

MAX_ERROR_BYTES = 64 << 10


class Finished(Protocol):
    """What an exchange that is over has: see `Exchange`."""

    reads: Reads
    late_reads: set[int]
    body: bytearray
    headers: list[tuple[str, str]]
    headers_read: int | None
    end_ns: int
    error: RequestFailure | None
    clean_end: bool


def measure(
    exchange: Finished,
    result: StreamResult,
    offsets_ns: tuple[int, int],
    pause: Callable[[], None] | None = None,
) -> None:
    """Fill `result` from a finished exchange; its instants of sending are there already.

    `offsets_ns` are realtime minus monotonic, read before the request was sent and now. `pause`
    is called after the events of each read.
    """
    reads = exchange.reads
    stamps = stamp_reads(reads, result.send_start_ns or 0, *offsets_ns)
    result.stamp_source = stamps.source
    if stamps.clock_step:
        result.flags = (*result.flags, "clock_step")
    if exchange.headers_read is not None and exchange.headers_read < len(reads):
        result.headers_ns = stamps.at_ns[exchange.headers_read]
    fold = AnswerFold(result, exchange.late_reads)
    content_type = dict(exchange.headers).get("content-type", "")
    start = bytes(exchange.body[:64])
    if start and not is_event_stream(start, content_type):
        fold.error = _no_stream(bytes(exchange.body), content_type)
    else:
        _fold_events(exchange, stamps.at_ns, fold, pause)
    _close_account(exchange, fold)


def _no_stream(body: bytes, content_type: str) -> tuple[str, str]:
    """Class and text of a 200 whose body is no event stream: often a gateway's error object."""
    text = f"content-type {content_type!r}: {body[:64].decode('latin-1')}"
    try:
        failure = chunk.error_of(chunk.parse_event(body[:MAX_ERROR_BYTES]))
    except chunk.BadEventError:
        failure = None
    if failure is None:
        return "not_a_stream", text
    error_class = of_error_event(failure.kind, failure.text)
    return error_class.replace("stream_error_event", "not_a_stream"), failure.text


def _close_account(exchange: Finished, fold: AnswerFold) -> None:
    result = fold.result
    failure = exchange.error
    end: End = "clean" if exchange.clean_end else "cut"
    if failure is not None:
        end = "failed"
        result.error_class = failure.error_class
        result.error_text = str(failure)
    fold.finish(end, exchange.end_ns)
    if end == "failed" and result.error_class == "aborted_by_user":
        result.status = "aborted"


def _fold_events(
    exchange: Finished, at_ns: list[int], fold: AnswerFold, pause: Callable[[], None] | None
) -> None:
    decoder = SseDecoder()
    body = exchange.body
    start = last = 0
    try:
        for last, stop in enumerate(exchange.reads.body_ends):
            data = body[start:stop]
            start = stop
            for name, payload in decoder.feed(data):
                fold.take(name, payload, at_ns[last], last)
            if pause is not None:
                pause()
    except SseError as error:
        fold.error = fold.error or ("bad_event", str(error))
        return
    for name, payload in decoder.end():
        fold.take_unfinished(name, payload, at_ns[last], last)
