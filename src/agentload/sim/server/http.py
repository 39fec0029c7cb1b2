"""One HTTP request as the routes see it, on raw ASGI."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from agentload.clock import Clock
from agentload.sim.server.errors import ApiError
from agentload.sim.server.response import Headers, Response

Receive = Callable[[], Awaitable[dict[str, Any]]]
_VARY: Final = (b"vary", b"Origin")


class ClientGoneError(Exception):
    """The connection ended before the body was whole."""


class Call:
    """A request whose body has been read, and its response.

    `received_ns` is the monotonic instant at which the last byte of the body was here.
    """

    def __init__(
        self, scope: dict[str, Any], receive: Receive, response: Response, clock: Clock
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        self.response = response
        self.extra: Headers = ()  # headers of any response to it
        self.body = b""
        self.received_ns = 0
        self._receive = receive
        self._clock = clock
        self._cut = asyncio.get_running_loop().create_future()

    async def read_body(self) -> None:
        """Take in the whole body; raises ClientGoneError."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.body = b"".join(parts)
        self.received_ns = self._clock.now_ns()

    async def over(self) -> None:
        """Wait until the response is complete, the client has gone, or `cut` was called."""
        gone = asyncio.ensure_future(self._receive())
        await asyncio.wait({gone, self._cut}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()

    def cut(self) -> None:
        """Give the response up: the server closes the connection in the middle of it."""
        if not self._cut.done():
            self._cut.set_result(None)

    def extra_headers(self, echo_id: bool) -> Headers:
        """Headers that vLLM adds to each response; the id is the client's own, or made up."""
        if not echo_id:
            return [_VARY]
        own = self.headers.get(b"x-request-id") or uuid.uuid4().hex
        return [_VARY, (b"x-request-id", own.encode("latin-1"))]


def json_answer(call: Call, data: object, extra: Headers, status: int = 200) -> None:
    call.response.whole(status, orjson.dumps(data), extra)


def error_answer(call: Call, error: ApiError, extra: Headers) -> None:
    call.response.whole(error.status, error.body(), extra)
