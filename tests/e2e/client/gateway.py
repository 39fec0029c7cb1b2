"""A gateway between Locust and the simulator that keeps what passes and may answer for it."""

import json
import socket
from collections.abc import Callable
from typing import Any

from tests.e2e.client.fake_server import FakeServer, Request

Interfere = Callable[[Request], bool]  # True: it has answered, or never will


def gateway(port: int, interfere: Interfere) -> FakeServer:
    """Passes requests to this port of the machine, each on a connection of its own."""

    def handle(request: Request) -> None:
        if interfere(request):
            return
        with socket.create_connection(("127.0.0.1", port)) as upstream:
            upstream.sendall(_head(request) + request.body)
            while data := upstream.recv(65_536):
                request.wire.send(data)
        request.wire.close()

    return FakeServer(handle)


def _head(request: Request) -> bytes:
    kept = {k: v for k, v in request.headers.items() if k not in ("connection", "host")}
    lines = [f"{request.method} {request.path} HTTP/1.1", "host: sim", "connection: close"]
    lines += [f"{name}: {value}" for name, value in kept.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def prompts(server: FakeServer) -> list[Any]:
    """The prompts of the completions that passed."""
    asked = [request for request in server.requests if request.path == "/v1/completions"]
    return [json.loads(request.body)["prompt"] for request in asked]
