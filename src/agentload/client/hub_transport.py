"""An httpx2 transport over sockets that the gevent hub reads."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx2

from agentload.client.connection import IdleConnections, open_connection
from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure
from agentload.client.exchange import Exchange
from agentload.client.reader import HubReader
from agentload.client.settings import TargetSettings
from agentload.clock import Clock


class TransportFailure(httpx2.TransportError):
    """What the SDK sees of a failed exchange; `error_class` is one of the classes of `errors`."""

    def __init__(self, error_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class


@dataclass(slots=True)
class Call:
    """One request on its way through the SDK to the transport below it."""

    deadlines: Deadlines
    idle: IdleConnections | None = None
    close_gaps: bool = False
    exchange: Exchange | None = field(default=None, init=False)


CURRENT: ContextVar[Call | None] = ContextVar("agentload_call", default=None)


class HubTransport(httpx2.BaseTransport):
    """HTTP/1.1 over `Exchange`; the call of the current greenlet says how and where from."""

    def __init__(self, settings: TargetSettings, reader: HubReader, clock: Clock) -> None:
        self._deadlines = Deadlines.of(settings)
        self._reader = reader
        self._clock = clock
        self._settings = settings
        self._context: ssl.SSLContext | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = CURRENT.get() or Call(self._deadlines)
        try:
            exchange = self._open(request, call)
            exchange.start([_head(request), *request.stream])  # type: ignore[misc]
            exchange.wait_headers()
        except RequestFailure as error:
            if call.exchange is not None:
                close(call.exchange, None)
            raise TransportFailure(error.error_class, str(error)) from None
        # The exchange has undone the encoding; the library would try it once more.
        headers = [pair for pair in exchange.headers if pair[0] != "content-encoding"]
        return httpx2.Response(exchange.status, headers=headers, stream=_Body(exchange, call))

    def _open(self, request: httpx2.Request, call: Call) -> Exchange:
        url = request.url
        tls = url.scheme == "https"
        host, port = url.raw_host.decode("ascii"), url.port or (443 if tls else 80)
        connection = call.idle.take((host, port, tls)) if call.idle is not None else None
        if connection is None:
            context = self._tls() if tls else None
            connection = open_connection(host, port, context, call.deadlines.connect_s)
        reader = self._reader.pick(connection.kernel_stamps, call.close_gaps)
        call.exchange = Exchange(connection, reader, call.deadlines, self._clock)
        return call.exchange

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(self._settings)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


class _Body(httpx2.SyncByteStream):
    """The body for whoever reads it through the SDK: errors, and answers that are no stream."""

    def __init__(self, exchange: Exchange, call: Call) -> None:
        self._exchange = exchange
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield self._exchange.whole_body()
        except RequestFailure as error:
            raise TransportFailure(error.error_class, str(error)) from None

    def close(self) -> None:
        close(self._exchange, self._call.idle)


def close(exchange: Exchange, idle: IdleConnections | None) -> None:
    """Stop reading; keep the connection for the next turn when it can carry one."""
    exchange.stop()
    connection = exchange.connection
    if idle is not None and exchange.reusable:
        idle.give(connection)
    else:
        connection.close()
    exchange.release()


def tls_context(settings: TargetSettings) -> ssl.SSLContext:
    """The system's trust store, or the given CA file. Raises `RequestFailure`."""
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RequestFailure("tls_error", f"ca_file {settings.ca_file}: {reason}") from None


def _head(request: httpx2.Request) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"
