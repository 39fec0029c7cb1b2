"""Offset between two processes' monotonic clocks, from round trips."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

DRIFT_PPM = 50  # what an undisciplined quartz may drift; ages a sample
KEPT_SAMPLES = 240


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """One round trip: the other clock was read some time between `sent_ns` and `received_ns`."""

    sent_ns: int
    other_ns: int
    received_ns: int

    @property
    def offset_ns(self) -> int:
        """Other clock minus own, if both ways took equally long."""
        return self.other_ns - (self.sent_ns + self.received_ns) // 2

    def error_ns(self, now_ns: int) -> int:
        """Largest error: half the round trip, plus what the clocks may have drifted since."""
        age_ns = max(0, now_ns - self.received_ns)
        return (self.received_ns - self.sent_ns) // 2 + age_ns * DRIFT_PPM // 1_000_000


@dataclass(slots=True)
class ClockOffset:
    """The best known offset of another process's clock: the sample with the least error now."""

    samples: deque[OffsetSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    same_clock: bool = False

    def add(self, sent_ns: int, other_ns: int, received_ns: int) -> None:
        if received_ns < sent_ns:
            raise ValueError(f"a round trip of {received_ns - sent_ns} ns")
        self.samples.append(OffsetSample(sent_ns, other_ns, received_ns))

    @property
    def known(self) -> bool:
        return self.same_clock or bool(self.samples)

    def best(self, now_ns: int) -> tuple[int, int]:
        """Offset and its largest error in nanoseconds; ValueError before the first round trip."""
        if self.same_clock:
            return 0, 0
        if not self.samples:
            raise ValueError("no round trip yet")
        sample = min(self.samples, key=lambda s: s.error_ns(now_ns))
        return sample.offset_ns, sample.error_ns(now_ns)


def clock_identity() -> str | None:
    """Names the monotonic clock of this process: one boot, one time namespace; None = unknown.

    Two processes with the same identity read the same clock, whatever a round trip says.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/time")
    except (OSError, UnicodeDecodeError):
        return None
    return f"{boot} {namespace}"
