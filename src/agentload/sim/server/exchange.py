"""One API request on its way through the engine, and the response it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from agentload.sim.core.request import Request
from agentload.sim.server import bodies, errors, tokens, wire
from agentload.sim.server.answer import Answer
from agentload.sim.server.chunks import ChunkWriter
from agentload.sim.server.prefix import Path
from agentload.sim.server.response import EVENT_STREAM, Headers, Response
from agentload.sim.server.wire import Delivery, Identity, Usage


class Owner(Protocol):
    """The engine side of an exchange."""

    speed: float

    def now_ns(self) -> int: ...


class Choice:
    """One answer of a response; the live engine's sink."""

    def __init__(
        self, exchange: Exchange, index: int, request: Request, prompt: bytes, answer: Answer,
        limit: int, path: Callable[[], Path],
    ) -> None:  # fmt: skip
        self.exchange = exchange
        self.index = index
        self.request = request
        self.prompt = prompt
        self.answer = answer
        self.limit = limit
        self._path = path
        self.ready_s = request.arrival_s
        self.generated = 0
        self.last_token_s = 0.0
        self.sent = 0
        self.writer = ChunkWriter(exchange.identity, index, answer, exchange.delivery)
        self._quick = self.writer.quick(tokens.count(prompt))

    @property
    def finish_reason(self) -> str:
        """As the engine says it; the API may say tool_calls."""
        return "stop" if self.answer.ends_itself else "length"

    @property
    def done(self) -> bool:
        return self.generated >= self.request.output_tokens

    def place(self) -> None:
        self.request.place(self._path())

    def deliver(self) -> None:
        low, exchange = self.sent, self.exchange
        if (
            low
            and self._quick is not None
            and self.generated == low + 1 < self.request.output_tokens
            and exchange.is_plain
        ):
            self.sent = low + 1
            exchange.chunks += 1
            exchange.response.write(self._quick.chunk(low))
        else:
            exchange.deliver(self)

    def refuse(self) -> None:
        self.exchange.refuse()


class Exchange:
    """Turns the tokens of its choices into chunks or into one body.

    `first_sent_ns` and `last_sent_ns`: when the kernel had the first chunk with text, and the end
    of the response. A write is a system call at once unless the client reads too slowly or a fault
    holds the response.

    `ended` is called once, when the response is complete or given up, with the reason: finished,
    refused, or a fault's name.
    """

    def __init__(
        self, identity: Identity, delivery: Delivery, response: Response, headers: Headers,
        owner: Owner, ended: Callable[[Exchange, str], None],
    ) -> None:  # fmt: skip
        self.identity = identity
        self.delivery = delivery
        self.response = response
        self.choices: list[Choice] = []
        self.chunks = 0
        self.first_sent_ns: int | None = None
        self.last_sent_ns: int | None = None
        self.on_chunk: Callable[[], None] | None = None  # for faults
        self.before_end: Callable[[], None] | None = None  # for faults
        self.over = False
        self._begun = False
        self._headers = headers
        self._owner = owner
        self._ended = ended

    @property
    def is_plain(self) -> bool:
        """A stream under way that no fault disturbs."""
        return self.delivery.stream and self.on_chunk is None and not self.over

    # -- from the engine ------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the headers of a stream, before any token."""
        if self.delivery.stream:
            self.response.start(200, [(b"content-type", EVENT_STREAM), *self._headers])

    def deliver(self, choice: Choice) -> None:
        """Tell the new tokens of one choice, if a chunk of them is due."""
        if self.over:
            return
        if self.delivery.stream:
            fresh = choice.generated - choice.sent
            if choice.done or not choice.sent or fresh >= self.delivery.interval:
                self._chunk(choice)
        if all(one.done for one in self.choices):
            self._finish()

    def refuse(self) -> None:
        """The engine would not take the request: an error, inside the stream if that has begun."""
        error = errors.busy()
        if self.delivery.stream:
            self.end_with_error(error)
        else:
            self.response.whole(error.status, error.body(), self._headers)
            self.give_up("refused")

    def end_with_error(self, error: errors.ApiError) -> None:
        """Tell an error inside the stream, as vLLM does once the 200 is sent."""
        if self.before_end is not None:
            self.before_end()
        self.response.write(wire.error_event(error.details))
        self.response.write(wire.DONE)
        self.response.end()
        self.give_up("refused" if error.status == 503 else "error")

    def give_up(self, reason: str) -> None:
        """Stop here, whatever was sent."""
        if not self.over:
            self.over = True
            self._ended(self, reason)

    def keep_alive(self, interval_s: float) -> None:
        """Write a comment for each interval in which no chunk was written."""
        loop, told = asyncio.get_running_loop(), self.chunks

        def tick() -> None:
            nonlocal told
            if self.over or not self.delivery.stream:
                return
            if self.chunks == told:
                self.response.write(wire.KEEP_ALIVE)
            told = self.chunks
            loop.call_later(interval_s, tick)

        loop.call_later(interval_s, tick)

    # -- to the client --------------------------------------------------------------------------

    def _chunk(self, choice: Choice) -> None:
        write, writer, delivery = self.response.write, choice.writer, self.delivery
        if self.identity.is_chat and not self._begun:
            self._begun = True
            for one in self.choices:
                write(one.writer.role(one.prompt, self._running(one, 0)))
        low, high = choice.sent, choice.generated
        choice.sent = high
        usage = self._running(choice, high)
        if choice.done:
            data = writer.last(low, high, usage, fingerprint=not delivery.include_usage)
        else:
            ids_due = delivery.token_ids and not low and not self.identity.is_chat
            data = writer.tokens(low, high, usage, choice.prompt if ids_due else None)
        if data:
            write(data)
            self.chunks += 1
            if self.chunks == 1:
                self.first_sent_ns = self._owner.now_ns()
            if self.on_chunk is not None:
                self.on_chunk()

    def _finish(self) -> None:
        if self.over:  # a fault has ended it
            return
        if self.before_end is not None:
            self.before_end()
        if self.delivery.stream:
            if self.delivery.include_usage:
                chunk = wire.usage_chunk(self.identity, self._usage(), self._times())
                self.response.write(chunk)
            self.response.write(wire.DONE)
            self.response.end()
        else:
            self.chunks = 1
            self.response.whole(200, self._body(), self._headers)
            self.first_sent_ns = self._owner.now_ns()
        self.last_sent_ns = self._owner.now_ns()
        self.give_up("finished")

    def _body(self) -> bytes:
        answers = [(choice.answer, choice.prompt) for choice in self.choices]
        times = self._times()
        return bodies.whole_body(self.identity, self.delivery, answers, self._usage(), times)

    # -- figures --------------------------------------------------------------------------------

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; several choices of one prompt count it once."""
        prompts = {id(choice.prompt): choice.prompt for choice in self.choices}
        return sum(map(tokens.count, prompts.values()))

    @property
    def cached_tokens(self) -> int:
        prompts = {id(choice.prompt): choice.request for choice in reversed(self.choices)}
        return sum(request.cached_tokens or 0 for request in prompts.values())

    def _usage(self) -> Usage:
        generated = sum(choice.generated for choice in self.choices)
        cached = self.cached_tokens if self.delivery.cached_tokens else None
        return Usage(self.prompt_tokens, generated, cached)

    def _times(self) -> dict[str, Any] | None:
        """vLLM's per-request times in wall milliseconds; None when not to be told."""
        if not self.delivery.request_times or len(self.choices) > 1:
            return None
        return request_times(self.choices[0], self._owner.speed)

    def _running(self, choice: Choice, generated: int) -> Usage | None:
        if not self.delivery.running_usage:
            return None
        return Usage(tokens.count(choice.prompt), generated, None)


def request_times(choice: Choice, speed: float) -> dict[str, Any]:
    """`time_to_first_token_ms` starts when the request is scheduled, as in vLLM."""
    request = choice.request
    scheduled_s, first_s, last_s = request.scheduled_s, request.first_token_s, choice.last_token_s
    assert scheduled_s is not None
    assert first_s is not None
    to_ms = 1000 / speed
    generation_ms = (last_s - first_s) * to_ms
    times: dict[str, Any] = {
        "time_to_first_token_ms": (first_s - scheduled_s) * to_ms,
        "generation_time_ms": generation_ms,
        "queue_time_ms": (scheduled_s - choice.ready_s) * to_ms,
    }
    if choice.generated > 1:
        times["mean_itl_ms"] = generation_ms / (choice.generated - 1)
    times["tokens_per_second"] = choice.generated / (last_s - scheduled_s) * speed
    return times
