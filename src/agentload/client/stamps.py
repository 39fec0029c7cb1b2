"""The instant of each read: the kernel's receive stamp where it can be trusted."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentload.clock import NS_PER_S

Read = tuple[int, bytes | None, int]  # user ns, raw kernel stamp, body pieces so far
_TIMESPEC = struct.Struct("@qq")
# What two readings of the offset between the clocks may differ by without a step: they are taken
# from the tightest of many sandwiches, so they agree within microseconds.
STEP_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Stamps:
    """`at_ns[i]` is the monotonic instant of read i, from one source for the whole stream."""

    at_ns: list[int]
    source: Literal["kernel", "user"]
    clock_step: bool


def stamp_reads(
    reads: Sequence[Read], send_start_ns: int, offset_start_ns: int, offset_end_ns: int
) -> Stamps:
    """Kernel stamps (CLOCK_REALTIME less the offset), or user stamps when any is missing.

    `offset_*_ns` is realtime minus monotonic at both ends of the stream. When they differ the
    wall clock was stepped; a stamp before the send or after its own read tells of a step as well.
    """
    user = [read[0] for read in reads]
    raw = [read[1] for read in reads]
    if not raw or any(stamp is None or len(stamp) != _TIMESPEC.size for stamp in raw):
        return Stamps(user, "user", False)
    kernel = []
    for stamp in raw:
        seconds, nanoseconds = _TIMESPEC.unpack(stamp)  # type: ignore[arg-type]
        kernel.append(seconds * NS_PER_S + nanoseconds - offset_start_ns)
    stepped = abs(offset_end_ns - offset_start_ns) > STEP_NS or any(
        not send_start_ns - STEP_NS <= at <= read_at + STEP_NS
        for at, read_at in zip(kernel, user, strict=True)
    )
    return Stamps(user, "user", True) if stepped else Stamps(kernel, "kernel", False)
