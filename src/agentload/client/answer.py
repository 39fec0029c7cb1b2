"""The events of one streamed answer folded into what was measured."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any, Literal

from agentload.client import chunk
from agentload.client.errors import of_error_event
from agentload.client.result import ServerTimes, StreamResult
from agentload.client.sse import SseDecoder

MS = 1_000_000
MAX_NAME_CHARS = 128
End = Literal["clean", "cut", "failed"]


class FirstTokenWatch:
    """Tells when the bytes of a stream first hold generated text."""

    def __init__(self) -> None:
        self._decoder = SseDecoder()

    def seen_in(self, data: bytes | bytearray) -> bool:
        """Whether these next bytes complete the first token event; broken events are no token."""
        for _, payload in self._decoder.feed(data):
            try:
                if chunk.output_of(chunk.first_choice(chunk.parse_event(payload))):
                    return True
            except chunk.BadEventError:
                continue
        return False


class AnswerFold:
    """Takes events in order, each with the stamp of the read that completed it.

    `take` before `finish`; nothing here reads a clock or a socket. `late_reads` are those that
    the reader came to later than it meant to.
    """

    def __init__(self, result: StreamResult, late_reads: Collection[int] = ()) -> None:
        self.result = result
        self._late_reads = late_reads
        self._opens_read = True
        self.error: tuple[str, str] | None = None  # class, server's text
        self.done = False
        self._read_of_last_token = -1
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[list[str], list[str]]] = {}
        self._chunk_tokens: list[int] | None = []
        self._ids_since_token = 0
        self._counts_ids = False
        self._running_total: int | None = None
        self._total_at_token = 0

    def take(self, name: bytes, data: bytes, stamp_ns: int, read: int) -> None:
        """One event; `read` numbers the socket read that completed it."""
        if self.done:
            return
        if data[:1] != b"{" and data.strip() == b"[DONE]":
            self.done = True
            self.result.end_ns = stamp_ns
            return
        try:
            event = chunk.parse_event(data)
        except chunk.BadEventError as error:
            self._fail("bad_event", str(error))
            return
        failure = chunk.error_of(event, name)
        if failure is not None:
            self._fail(of_error_event(failure.kind, failure.text), failure.text)
            return
        self._take_usage(event)
        self._take_choice(event, stamp_ns, read)

    def take_unfinished(self, name: bytes, data: bytes, stamp_ns: int, read: int) -> None:
        """The bytes after the last blank line: an event if they are a whole one, else ignored."""
        if data.strip() != b"[DONE]":
            try:
                chunk.parse_event(data)
            except chunk.BadEventError:
                return
        self.take(name, data, stamp_ns, read)

    def _fail(self, error_class: str, text: str) -> None:
        if self.error is None:
            self.error = (error_class, text)

    def _take_choice(self, event: dict[str, Any], stamp_ns: int, read: int) -> None:
        result = self.result
        if result.server_request_id is None and isinstance(event.get("id"), str):
            result.server_request_id = _name(event["id"])
        choice = chunk.first_choice(event)
        if choice is None:
            return
        if isinstance(choice.get("finish_reason"), str):
            result.finish_reason = _name(choice["finish_reason"])
        ids = chunk.tokens_in(choice)
        if ids is not None:
            self._counts_ids = True
            self._ids_since_token += ids
        output = chunk.output_of(choice)
        if output:
            self._take_output(output, stamp_ns, read)

    def _take_output(self, output: chunk.Output, stamp_ns: int, read: int) -> None:
        result = self.result
        self._take_stamp(stamp_ns, read)
        self._take_chunk_tokens()
        self._text.append(output.content)
        self._reasoning.append(output.reasoning)
        if result.first_output_ns is None and (output.content or output.tool_calls):
            result.first_output_ns = stamp_ns
        for index, name, arguments in output.tool_calls:
            names, fragments = self._calls.setdefault(index, ([], []))
            if name and "".join(names) != name:  # some gateways repeat the name in each delta
                names.append(name)
            fragments.append(arguments)

    def _take_stamp(self, stamp_ns: int, read: int) -> None:
        result = self.result
        merged = read == self._read_of_last_token
        result.late_merged += merged and read in self._late_reads
        if merged and self._opens_read:
            result.merged_reads += 1
            # All events of a read carry its last stamp. When the reader came late the read's
            # first event may have been waiting, so the gap before it is no measurement either.
            if read in self._late_reads and len(result.merged) > 1:
                result.merged[-1] = True
        self._opens_read = not merged
        result.chunk_ns.append(stamp_ns)
        result.merged.append(merged)
        self._read_of_last_token = read

    def _take_chunk_tokens(self) -> None:
        if self._chunk_tokens is None:
            return
        if self._counts_ids:
            tokens = self._ids_since_token
            self._ids_since_token = 0
        elif self._running_total is not None:
            tokens = self._running_total - self._total_at_token
            self._total_at_token = self._running_total
        else:
            tokens = 0
        if tokens < 1:  # the server does not say, or not for every chunk
            self._chunk_tokens = None
        else:
            self._chunk_tokens.append(tokens)

    def _take_usage(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        completion = (
            chunk.count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        )
        if completion is not None:
            assert isinstance(usage, dict)
            result = self.result
            result.output_tokens = max(completion, result.output_tokens or 0)
            self._running_total = completion
            prompt = chunk.count(usage.get("prompt_tokens"))
            result.prompt_tokens = result.prompt_tokens if prompt is None else prompt
            cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
            result.cached_tokens = result.cached_tokens if cached is None else cached
            reasoning = _detail(usage, "completion_tokens_details", "reasoning_tokens")
            result.reasoning_tokens = result.reasoning_tokens if reasoning is None else reasoning
        metrics = event.get("metrics")
        if isinstance(metrics, dict):
            self.result.server_times = ServerTimes(
                queue_s=_seconds(metrics.get("queue_time_ms")),
                prefill_s=_seconds(metrics.get("time_to_first_token_ms")),
                decode_s=_seconds(metrics.get("generation_time_ms")),
            )

    def finish(self, end: End, end_ns: int) -> None:
        """Close the account: the stream's body ended at `end_ns`, cleanly, cut, or by a failure
        that the caller reports itself (`failed`)."""
        result = self.result
        if result.end_ns is None:
            result.end_ns = end_ns
        result.text = _valid(self._text)
        result.reasoning_text = _valid(self._reasoning)
        result.tool_calls = tuple(
            {"name": _valid(names), "arguments": _valid(fragments)}
            for _, (names, fragments) in sorted(self._calls.items())
        )
        if result.reasoning_text and result.reasoning_tokens == 0:
            result.reasoning_tokens = None  # vLLM says 0 where it does not count them
        if self._chunk_tokens and result.chunk_ns:
            result.chunk_tokens = self._chunk_tokens
        if result.output_tokens is not None:
            result.token_source = "usage"
        elif result.chunk_ns:
            result.output_tokens = len(result.chunk_ns)
            result.token_source = "events"
        result.flags = (*result.flags, *_flags(result))
        self._judge(end)

    def _judge(self, end: End) -> None:
        result = self.result
        if self.error is not None:
            result.status = "error"
            result.error_class, result.error_text = self.error
        elif end == "failed" and not self.done:
            result.status = "error"
        elif not self.done and (end == "cut" or result.finish_reason is None):
            result.status = "error"
            result.error_class = "stream_cut"
            result.error_text = "the stream ended without [DONE] and without a whole last chunk"
        elif not result.chunk_ns:
            result.status = "error"
            result.error_class = "empty_response"
            result.error_text = "the stream ended well but held no generated text"
        else:
            result.status = "success"
            result.error_class = result.error_text = None


def _flags(result: StreamResult) -> list[str]:
    flags = []
    tokens = result.output_tokens
    if tokens is not None and tokens > len(result.chunk_ns) + 1:
        flags.append("multi_token_chunks")
    if _is_buffered(result):
        flags.append("buffered_stream")
    if result.token_source != "usage":
        flags.append("usage_missing")
    return flags


def _is_buffered(result: StreamResult) -> bool:
    stamps = result.chunk_ns
    start_ns = result.send_start_ns
    if len(stamps) < 5 or start_ns is None or result.end_ns is None:
        return False
    gaps = [b - a for a, b in pairwise(stamps)]
    tiny = sum(gap < MS for gap in gaps)
    late = stamps[0] - start_ns >= 0.9 * (result.end_ns - start_ns)
    return late and tiny >= 0.9 * len(gaps)


def _detail(usage: dict[str, Any], group: str, name: str) -> int | None:
    details = usage.get(group)
    return chunk.count(details.get(name)) if isinstance(details, dict) else None


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


def _name(text: str) -> str:
    """A word of the server that is written to files: one line, not long, valid UTF-8."""
    return _valid([" ".join(text[:MAX_NAME_CHARS].split())])


def _valid(parts: list[str]) -> str:
    return "".join(parts).encode("utf-8", "replace").decode()
