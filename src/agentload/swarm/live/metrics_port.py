"""The live figures for Prometheus on a port of their own, which asks for no login."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.pywsgi import WSGIServer

from agentload.live.openmetrics import CONTENT_TYPE, parts
from agentload.swarm.live import current

PATH = "/agentload/metrics"
PATHS = (PATH, "/metrics")

StartResponse = Callable[[str, list[tuple[str, str]]], object]


def page() -> bytes:
    """The figures of now, made between the turns of a process that loads."""
    found = []
    for part in parts(current.snapshot()):
        found.append(part)
        gevent.sleep(0)
    return b"".join(found)


def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """GET of one of the two paths; everything else is refused."""
    status, kind, body = "404 Not Found", "text/plain", f"see {PATH}\n".encode()
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", b"GET only\n"
    elif environ["PATH_INFO"] in PATHS:
        status, kind, body = "200 OK", CONTENT_TYPE, page()
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start_response(status, [*headers, ("X-Content-Type-Options", "nosniff")])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def serve(host: str, port: int) -> WSGIServer:
    """Answer from now on; OSError when the port is taken. An empty host is every address."""
    server = WSGIServer((host, port), answer, log=None)
    server.start()
    return server
