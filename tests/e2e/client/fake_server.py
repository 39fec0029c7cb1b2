"""A small HTTP server on threads that answers as a test tells it to."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Request:
    """One request as received; `number` counts from 1 over all connections."""

    number: int
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    wire: "Wire"


@dataclass
class Wire:
    """The connection a handler answers on."""

    sock: socket.socket
    closed: bool = False

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.sock.sendall(b"0\r\n\r\n")

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


Handler = Callable[[Request], None]


class Schedule:
    """Instants counted from its making: who is late for one is not late for the next."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()

    def wait(self, at_s: float) -> float:
        """Return at this instant or, when it is past, at once; monotonic seconds of the return."""
        time.sleep(max(0.0, self._start_s + at_s - time.monotonic()))
        return time.monotonic()


@dataclass
class FakeServer:
    """Calls `handler` for each request, in a thread for each connection."""

    handler: Handler
    tls: ssl.SSLContext | None = None
    idle_close_s: float | None = None
    host: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}/v1"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            wire = Wire(sock)
            while not wire.closed:
                sock.settimeout(self.idle_close_s)
                request = self._read(sock, connection, wire)
                if request is None:
                    break
                sock.settimeout(None)
                self.handler(request)
            sock.close()
        except OSError:
            sock.close()

    def _read(self, sock: socket.socket, connection: int, wire: Wire) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            part = sock.recv(65_536)
            if not part:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        headers |= {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += sock.recv(65_536)
        with self._lock:
            request = Request(
                len(self.requests) + 1,
                connection,
                method,
                path,
                headers,
                body,
                time.monotonic(),
                wire,
            )
            self.requests.append(request)
        return request


def event(content: str) -> bytes:
    """A chat chunk with this text."""
    return (
        b'data: {"id":"r1","choices":[{"index":0,"delta":{"content":"%b"},'
        b'"finish_reason":null}]}\n\n' % content.encode()
    )


FINISH = b'data: {"id":"r1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(request: Request, tokens: int, first_s: float = 0.0, gap_s: float = 0.0) -> None:
    """A well-formed streamed answer."""
    wire = request.wire
    wire.send(SSE_HEAD)
    for index in range(tokens):
        Schedule().wait(first_s if index == 0 else gap_s)  # gaps are never shorter than this
        wire.chunk(event(f"t{index} "))
    wire.chunk(FINISH)
    wire.chunk(DONE)
    wire.end()
