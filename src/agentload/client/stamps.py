"""The instant of each read: the kernel's receive stamp where it can be trusted."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Literal

from agentload.clock import NS_PER_S

_TIMESPEC = struct.Struct("@qq")
# What two readings of the offset between the clocks may differ by without a step: they are taken
# from the tightest of many sandwiches, so they agree within microseconds.
STEP_NS = 1_000_000


@dataclass(slots=True)
class Reads:
    """Every socket read of one exchange, in order.

    Arrays, since the garbage collector walks over lists and tuples: with one tuple a read its walk
    stopped the loop of 500 streams for 45 ms.
    """

    at_ns: array[int] = field(default_factory=lambda: array("q"))  # the moment of the read
    kernel: bytearray = field(default_factory=bytearray)  # raw stamps, one after the other
    body_ends: array[int] = field(default_factory=lambda: array("q"))  # body bytes so far

    def add(self, at_ns: int, kernel: bytes, body_end: int) -> None:
        """`kernel` is empty for a read without a stamp."""
        self.at_ns.append(at_ns)
        self.kernel += kernel
        self.body_ends.append(body_end)

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class Stamps:
    """`at_ns[i]` is the monotonic instant of read i, from one source for the whole stream."""

    at_ns: list[int]
    source: Literal["kernel", "user"]
    clock_step: bool


def stamp_reads(
    reads: Reads, send_start_ns: int, offset_start_ns: int, offset_end_ns: int
) -> Stamps:
    """Kernel stamps (CLOCK_REALTIME less the offset), or user stamps when any is missing.

    `offset_*_ns` is realtime minus monotonic at both ends of the stream. When they differ the
    wall clock was stepped; a stamp before the send or after its own read tells of a step as well.
    """
    user = reads.at_ns.tolist()
    if not user or len(reads.kernel) != _TIMESPEC.size * len(user):
        return Stamps(user, "user", False)
    kernel = [
        seconds * NS_PER_S + nanoseconds - offset_start_ns
        for seconds, nanoseconds in _TIMESPEC.iter_unpack(reads.kernel)
    ]
    stepped = abs(offset_end_ns - offset_start_ns) > STEP_NS or any(
        not send_start_ns - STEP_NS <= at <= read_at + STEP_NS
        for at, read_at in zip(kernel, user, strict=True)
    )
    return Stamps(user, "user", True) if stepped else Stamps(kernel, "kernel", False)
