"""TCP payloads on loopback as the kernel saw them, by a raw packet socket."""

import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Self

ETH_P_ALL = 3
SO_TIMESTAMPNS = 35
PACKET_OUTGOING = 4
PACKET_STATISTICS = 6
_TIMESPEC = struct.Struct("@qq")


@dataclass
class Segment:
    """Payload bytes of one direction and when they passed, nanoseconds of CLOCK_REALTIME."""

    at_ns: int
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
        statistics = self._socket.getsockopt(263, PACKET_STATISTICS, 8)  # 263: SOL_PACKET
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
        segment = Segment(seconds * 10**9 + nanoseconds, sequence, payload)
        if payload and target == self.port:
            self.to_server.append(segment)
        elif payload and source == self.port:
            self.from_server.append(segment)


def arrivals_of(segments: list[Segment], mark: bytes) -> list[int]:
    """When the last byte of each event with this mark passed; a mark may span segments."""
    body = b"".join(segment.payload for segment in segments)
    ends, total = [], 0
    for segment in segments:
        total += len(segment.payload)
        ends.append(total)
    found, arrivals = body.find(mark), []
    while found >= 0:
        end = body.index(b"\n\n", found) + 2
        arrivals.append(next(s.at_ns for s, e in zip(segments, ends, strict=True) if e >= end))
        found = body.find(mark, found + 1)
    return arrivals
