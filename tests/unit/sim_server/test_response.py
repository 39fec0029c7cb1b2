"""Responses written from plain code, with a client that reads fast, slowly, or is made to wait."""

from __future__ import annotations

import asyncio
from typing import Any

from agentload.sim.server.response import Response


class Client:
    """An ASGI `send` that waits while `slow` is set, as a server with a full buffer does."""

    def __init__(self) -> None:
        self.got: list[bytes | int] = []
        self.free = asyncio.Event()
        self.free.set()

    async def send(self, message: dict[str, Any]) -> None:
        await self.free.wait()
        if message["type"] == "http.response.start":
            self.got.append(message["status"])
        else:
            self.got.append(message["body"])
            if not message["more_body"]:
                self.got.append(b"END")


def test_a_client_that_reads_gets_everything_at_once() -> None:
    async def run() -> None:
        client = Client()
        response = Response(client.send)
        response.start(200, [])
        response.write(b"a")
        response.end(b"b")
        assert client.got == [200, b"a", b"b", b"END"]  # without giving the loop a turn

    asyncio.run(run())


def test_a_client_that_reads_slowly_gets_everything_in_order_later() -> None:
    async def run() -> None:
        client = Client()
        response = Response(client.send)
        response.start(200, [])
        client.free.clear()
        for part in (b"a", b"b", b"c"):
            response.write(part)
        assert client.got == [200]
        client.free.set()
        for _ in range(3):
            await asyncio.sleep(0)
        response.write(b"d")
        client.free.clear()
        response.write(b"e")
        response.end()
        assert client.got == [200, b"a", b"b", b"c", b"d"]
        client.free.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert client.got == [200, b"a", b"b", b"c", b"d", b"e", b"", b"END"]

    asyncio.run(run())


def test_what_is_held_comes_in_order_when_all_holds_are_released() -> None:
    async def run() -> None:
        client = Client()
        response = Response(client.send)
        response.hold()
        response.start(200, [])
        response.hold()
        response.write(b"a")
        response.release()
        response.write(b"b")
        assert client.got == []
        response.release()
        assert client.got == [200, b"a", b"b"]

    asyncio.run(run())


def test_a_whole_response_has_its_length() -> None:
    async def run() -> None:
        client = Client()
        response = Response(client.send)
        response.whole(404, b"gone", [(b"vary", b"Origin")])
        assert client.got == [404, b"gone", b"END"]
        assert (response.status, response.body_bytes) == (404, 4)

    asyncio.run(run())
