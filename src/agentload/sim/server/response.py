"""One HTTP response written straight from the engine's timer, without a task per stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Final, cast

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"


class Response:
    """Writes ASGI messages from plain code.

    Waking a task for each chunk costs as much again as sending it. An ASGI `send` that need not
    wait runs through at its first step, so it is stepped here; only when the client reads too
    slowly does a task take over, and what comes meanwhile is held.

    `hold` and `release` delay everything written, for faults.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[dict[str, Any]] = []
        self._holds = 0
        self._writer: asyncio.Task[None] | None = None
        self.status: int | None = None
        self.body_bytes: int | None = None  # None for a stream

    def start(self, status: int, headers: Headers, body_bytes: int | None = None) -> None:
        self.status = status
        self.body_bytes = body_bytes
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, body: bytes) -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": True})

    def end(self, body: bytes = b"") -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": False})

    def whole(
        self, status: int, body: bytes, extra: Headers = (), content_type: bytes | None = JSON
    ) -> None:
        """A response with a known body; `extra` headers come last."""
        headers = [(b"content-length", b"%d" % len(body))]
        if content_type is not None:
            headers.append((b"content-type", content_type))
        self.start(status, [*headers, *extra], len(body))
        self.end(body)

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self._flush()

    def _put(self, message: dict[str, Any]) -> None:
        if self._holds or self._writer is not None:
            self._held.append(message)
        else:
            self._step(message)

    def _step(self, message: dict[str, Any]) -> None:
        coroutine = cast(Coroutine[Any, Any, None], self._send(message))
        try:
            waiting = coroutine.send(None)
        except StopIteration:
            return
        self._writer = asyncio.ensure_future(self._finish(coroutine, waiting))

    async def _finish(self, coroutine: Coroutine[Any, Any, None], waiting: Awaitable[Any]) -> None:
        """Let a suspended `send` run to its end, then write what was held meanwhile."""
        await _Resumed(coroutine, waiting)
        self._writer = None
        self._flush()

    def _flush(self) -> None:
        while self._held and not self._holds and self._writer is None:
            self._put(self._held.pop(0))


class _Resumed:
    """Awaits the rest of a coroutine that was stepped once and yielded `waiting`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waiting: Awaitable[Any]) -> None:
        self._coroutine = coroutine
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, None]:
        waiting = self._waiting
        while True:
            yield waiting
            try:
                waiting = self._coroutine.send(None)
            except StopIteration:
                return
