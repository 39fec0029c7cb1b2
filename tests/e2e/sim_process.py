"""The embedded server as a process of its own, and a client of plain sockets."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SMALL = ["--max-model-len", "32768", "--served-model-name", "tiny"]
MODEL = "tiny"


@dataclass
class Answer:
    """A whole response: status, headers in order of the wire, body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


@dataclass
class Stream:
    """A response as it came off the socket: (monotonic ns, bytes) of each read."""

    reads: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def header_names(self) -> list[str]:
        lines = self.raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return [line.partition(":")[0] for line in lines]

    @property
    def http_chunks(self) -> list[bytes]:
        """Bodies of the HTTP chunks; the last is empty when the stream was ended properly."""
        rest = self.raw.partition(b"\r\n\r\n")[2]
        found = []
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            found.append(rest[:length])
            rest = rest[length + 2 :]
        return found

    @property
    def data(self) -> list[str]:
        """Payloads of the `data:` events, `[DONE]` included."""
        text = b"".join(self.http_chunks).decode()
        return [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.data if one != "[DONE]"]

    def read_with(self, needle: bytes) -> int:
        """Monotonic ns of the first read by which `needle` had come."""
        seen = b""
        for at_ns, data in self.reads:
            seen += data
            if needle in seen:
                return at_ns
        raise AssertionError(f"{needle!r} never came: {seen[-500:]!r}")


class Sim:
    """`python -m agentload.sim.server` on a free port, for the time of a `with`."""

    def __init__(self, *flags: str, log: Path | None = None) -> None:
        own = [] if log is None else ["--request-log", str(log)]
        module = [sys.executable, "-m", "agentload.sim.server", "--port", "0"]
        self.command = [*module, *SMALL, *own, *flags]
        self.log = log

    def __enter__(self) -> Sim:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.ready = json.loads(line)
        self.port: int = self.ready["port"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM; the exit code. `stderr` is kept."""
        if self.process.returncode is None:
            self.process.terminate()
            _, self.stderr = self.process.communicate(timeout=10)
        return self.process.returncode

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        answer = Answer(response.status, response.getheaders(), response.read())
        connection.close()
        return answer

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.request("GET", path, None, headers)

    def open(
        self, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> socket.socket:
        """Send a request that asks for the connection to be closed after it."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(head.encode() + data)
        return connection

    def stream(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Stream:
        """The whole response, read as it comes."""
        with self.open(path, body, headers) as connection:
            return Stream(list(reads(connection)))

    def chat(self, content: str = "import os", **fields: Any) -> Stream:
        """A streamed chat of one message."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        return self.stream("/v1/chat/completions", {**body, "stream": True, **fields})

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics` by their whole name, labels included."""
        text = self.get("/metrics").body.decode()
        pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def log_line(self, request_id: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """The request log's line of one request, as soon as it is there."""
        assert self.log is not None
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            for line in map(json.loads, self.log.read_text().splitlines()):
                if line["request_id"] == request_id:
                    return dict(line)
            time.sleep(0.002)
        raise AssertionError(f"the request log has no line of {request_id}")


def reads(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    while data := connection.recv(1 << 16):
        yield time.perf_counter_ns(), data


def engine_sample(name: str, model: str = MODEL) -> str:
    """The whole name of an engine metric without labels of its own."""
    return f'vllm:{name}{{engine="0",model_name="{model}"}}'
