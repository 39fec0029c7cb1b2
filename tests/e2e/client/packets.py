"""HTTP exchanges on loopback as the kernel's packets tell them: a reader of its own, for tests.

Nothing of the product is used: not its HTTP framing, not its event parser, not its clock.
"""

import json
import socket
import struct
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Self

ETH_P_ALL = 3
SO_TIMESTAMPNS = 35
PACKET_OUTGOING = 4
PACKET_STATISTICS = 6
SOL_PACKET = 263
_TIMESPEC = struct.Struct("@qq")


@dataclass
class Segment:
    """Payload bytes of one direction and when they passed, nanoseconds of CLOCK_REALTIME."""

    at_ns: int
    client_port: int
    sequence: int
    payload: bytes


@dataclass
class Capture:
    """Everything to and from one port while the context is open.

    Raises `PermissionError` without the right to open a packet socket.
    """

    port: int
    to_server: list[Segment] = field(default_factory=list)
    from_server: list[Segment] = field(default_factory=list)
    dropped: int = 0

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.bind(("lo", ETH_P_ALL))
        self._socket.settimeout(0.1)
        self._open = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._thread.join()
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.dropped = struct.unpack("II", statistics)[1]
        self._socket.close()

    def _run(self) -> None:
        while self._open:
            try:
                packet, ancillary, _, address = self._socket.recvmsg(1 << 17, 64)
            except TimeoutError:
                continue
            if address[2] != PACKET_OUTGOING:  # loopback shows each packet twice
                self._take(packet, ancillary[0][2])

    def _take(self, packet: bytes, stamp: bytes) -> None:
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        tcp = packet[(packet[0] & 15) * 4 :]
        source, target, sequence = struct.unpack_from("!HHI", tcp)
        payload = tcp[(tcp[12] >> 4) * 4 :]
        seconds, nanoseconds = _TIMESPEC.unpack(stamp)
        at_ns = seconds * 10**9 + nanoseconds
        if payload and target == self.port:
            self.to_server.append(Segment(at_ns, source, sequence, payload))
        elif payload and source == self.port:
            self.from_server.append(Segment(at_ns, target, sequence, payload))


class Bytes:
    """The bytes of one direction of one connection, each with the time its packet passed."""

    def __init__(self, segments: list[Segment]) -> None:
        self.data = b""
        self._ends: list[int] = []
        self._at_ns: list[int] = []
        first = segments[0].sequence if segments else 0
        for segment in segments:
            start = (segment.sequence - first) % 2**32
            if start < len(self.data):  # sent again
                continue
            assert start == len(self.data), "a packet is missing"
            self.data += segment.payload
            self._ends.append(len(self.data))
            self._at_ns.append(segment.at_ns)

    def passed_ns(self, offset: int) -> int:
        """When the byte at this offset passed."""
        return self._at_ns[bisect_left(self._ends, offset + 1)]


@dataclass
class HttpExchange:
    """One request with its answer; instants are nanoseconds of CLOCK_REALTIME."""

    path: str
    request_headers: dict[str, str]
    first_request_byte_ns: int
    last_request_byte_ns: int
    status: int
    events: list[tuple[int, bytes]]  # (when the event's last byte passed, its data)

    def tokens_ns(self) -> list[int]:
        """When each event with generated text was complete."""
        return [at_ns for at_ns, data in self.events if has_text(data)]


def has_text(data: bytes) -> bool:
    if data == b"[DONE]":
        return False
    event: dict[str, Any] = json.loads(data)
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return any([choice.get("text"), delta.get("content"), delta.get("reasoning")])


def exchanges(capture: Capture) -> list[HttpExchange]:
    """All whole exchanges of the capture, in the order of their requests."""
    ports = dict.fromkeys(segment.client_port for segment in capture.to_server)
    found: list[HttpExchange] = []
    for port in ports:
        asked = Bytes([s for s in capture.to_server if s.client_port == port])
        answered = Bytes([s for s in capture.from_server if s.client_port == port])
        found += _of_connection(asked, answered)
    return sorted(found, key=lambda one: one.first_request_byte_ns)


def _of_connection(asked: Bytes, answered: Bytes) -> list[HttpExchange]:
    found = []
    at = back = 0
    while at < len(asked.data):
        first_line, headers, body_at = _head(asked.data, at)
        end = body_at + int(headers.get("content-length", 0))
        if back >= len(answered.data) or end > len(asked.data):
            break  # the capture ended first
        status_line, answer_headers, content_at = _head(answered.data, back)
        pieces, back = _content(answered.data, content_at, answer_headers)
        if back < 0:
            break
        found.append(
            HttpExchange(
                path=first_line.split(" ")[1],
                request_headers=headers,
                first_request_byte_ns=asked.passed_ns(at),
                last_request_byte_ns=asked.passed_ns(end - 1),
                status=int(status_line.split(" ")[1]),
                events=_events(pieces, answered),
            )
        )
        at = end
    return found


def _head(data: bytes, at: int) -> tuple[str, dict[str, str], int]:
    end = data.index(b"\r\n\r\n", at)
    first, *lines = data[at:end].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}, end + 4


Pieces = list[tuple[int, bytes]]  # (offset on the wire, content)


def _content(data: bytes, at: int, headers: dict[str, str]) -> tuple[Pieces, int]:
    """The content without its transfer coding, and where the answer ends; -1: it is not whole."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        end = at + int(headers["content-length"])
        return [(at, data[at:end])], end if end <= len(data) else -1
    pieces: Pieces = []
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        start = line_end + 2
        if start + size + 2 > len(data):
            break
        at = start + size + 2
        if size == 0:
            return pieces, at
        pieces.append((start, data[start : start + size]))
    return pieces, -1


def _events(pieces: Pieces, wire: Bytes) -> list[tuple[int, bytes]]:
    """Events of one `data:` line each, as vLLM sends them."""
    content = b"".join(piece for _, piece in pieces)
    wire_of = [at + i for at, piece in pieces for i in range(len(piece))]
    events: list[tuple[int, bytes]] = []
    start = 0
    while (end := content.find(b"\n\n", start)) >= 0:
        block, start = content[start:end], end + 2
        if block.startswith(b"data: "):
            events.append((wire.passed_ns(wire_of[end + 1]), block[6:]))
    return events
