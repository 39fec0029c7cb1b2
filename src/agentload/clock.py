"""The only reader of time: everything else is handed a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A monotonic clock; the zero is arbitrary, the unit is the nanosecond."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """CLOCK_MONOTONIC, as every instant of a run is taken (`time.perf_counter_ns` on Linux)."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()


@dataclass(slots=True)
class VirtualClock:
    """A clock that moves only when told to, for tests and for simulation."""

    at_ns: int = 0

    def now_ns(self) -> int:
        return self.at_ns

    def advance_s(self, seconds: float) -> None:
        """Move forward; a negative step is an error, since instants of a run never go back."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: {seconds} s")
        self.at_ns += round(seconds * NS_PER_S)


@dataclass(frozen=True, slots=True)
class RunClock:
    """Seconds since the run's start; the wall time is read once and kept beside it."""

    start_ns: int
    wall_start_unix_s: float

    @classmethod
    def starting_now(cls, clock: Clock) -> RunClock:
        return cls(clock.now_ns(), wall_unix_s())

    def seconds(self, instant_ns: int) -> float:
        """Seconds since the run's start of a monotonic instant of the same process."""
        return (instant_ns - self.start_ns) / NS_PER_S


def wall_unix_s() -> float:
    """Wall time, for the manifest and for lining runs up with other logs; never for a duration."""
    return time.time()


def realtime_offset_ns(tries: int = 25) -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from the tightest of `tries` mono-real-mono readings.

    Kernel receive stamps are CLOCK_REALTIME. One pair of readings can be torn apart by a
    pre-emption of tens of ms, so the pair with the least time between its readings is taken.
    """
    best_width_ns, best_offset_ns = None, 0
    for _ in range(tries):
        before_ns = time.perf_counter_ns()
        real_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after_ns = time.perf_counter_ns()
        width_ns = after_ns - before_ns
        if best_width_ns is None or width_ns < best_width_ns:
            best_width_ns, best_offset_ns = width_ns, real_ns - (before_ns + after_ns) // 2
    return best_offset_ns
