"""Measures of a load-generating process's own lateness."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentload.recording.turn_rows import Freeze
from agentload.turn_metrics import percentile

NS_PER_S = 1_000_000_000
SAMPLE_EVERY_S = 0.02  # 50 Hz
FREEZE_S = 0.02  # a loop this late can glue two tokens of a 50 tokens/s stream together
KEPT_FREEZES = 4096

_BUCKET_S = 0.00025
_BUCKETS = 4000  # up to 1 s; what is later counts as 1 s


@dataclass(slots=True)
class LagHistogram:
    """Event-loop lateness of the whole run in steps of 0.25 ms, to 1 s."""

    counts: list[int] = field(default_factory=lambda: [0] * (_BUCKETS + 1))
    total: int = 0

    def add(self, lag_s: float) -> None:
        self.counts[min(int(lag_s / _BUCKET_S), _BUCKETS)] += 1
        self.total += 1

    def quantile_s(self, q: float) -> float | None:
        """Upper edge of the bucket that holds the q-quantile; None without samples."""
        if not self.total:
            return None
        wanted, seen = q * self.total, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return (bucket + 1) * _BUCKET_S
        return None


@dataclass(slots=True)
class LoopLag:
    """Lateness of a sampler that wants to wake every `SAMPLE_EVERY_S`.

    `slept` is told the moment before and after each sleep. What the sleep took beyond its length
    is the lateness; from `FREEZE_S` on it is kept as a freeze, in which stamps are not trusted.
    """

    whole_run: LagHistogram = field(default_factory=LagHistogram)
    this_second_s: list[float] = field(default_factory=list)
    freezes: deque[Freeze] = field(default_factory=lambda: deque(maxlen=KEPT_FREEZES))
    frozen_s: float = 0.0
    _due_ns: int | None = None

    def sleeping(self, now_ns: int) -> None:
        self._due_ns = now_ns + round(SAMPLE_EVERY_S * NS_PER_S)

    def woke(self, now_ns: int) -> None:
        if self._due_ns is None:
            return
        lag_s = max(0, now_ns - self._due_ns) / NS_PER_S
        self.whole_run.add(lag_s)
        self.this_second_s.append(lag_s)
        if lag_s >= FREEZE_S:
            self.freezes.append((self._due_ns, now_ns))
            self.frozen_s += lag_s

    def take_second(self) -> tuple[float | None, float | None]:
        """P50 and largest lateness since the last call; None when the sampler never woke."""
        samples, self.this_second_s = self.this_second_s, []
        return percentile(samples, 0.5), max(samples, default=None)

    def freezes_since(self, from_ns: int, now_ns: int) -> list[Freeze]:
        """Freezes that reach beyond `from_ns`, with the one that is going on, oldest first."""
        found = []
        for freeze in reversed(self.freezes):
            if freeze[1] <= from_ns:
                break
            found.append(freeze)
        found.reverse()
        if self._due_ns is not None and now_ns - self._due_ns >= FREEZE_S * NS_PER_S:
            found.append((self._due_ns, now_ns))
        return found


@dataclass(slots=True)
class CpuShare:
    """CPU time of this process as a share of one core between two calls."""

    _last_cpu_s: float | None = None
    _last_ns: int = 0

    def take(self, now_ns: int) -> float:
        cpu_s = process_cpu_s()
        before_s, self._last_cpu_s = self._last_cpu_s, cpu_s
        since_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if before_s is None or since_ns <= 0:
            return 0.0
        return (cpu_s - before_s) * NS_PER_S / since_ns


def process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def throttled_periods(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """How often this container was denied CPU (`nr_throttled`); None where there is no quota.

    `own` names the group of this process, of either version; in a container it is the root, in a
    slice or a group on the host it is not.
    """
    for folder in (*_own_groups(root, own), root, root / "cpu", root / "cpu,cpuacct"):
        found = _nr_throttled(folder / "cpu.stat")
        if found is not None:
            return found
    return None


def _own_groups(root: Path, own: Path) -> Iterator[Path]:
    """Folders of this process's group in the hierarchies that limit CPU."""
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.lstrip("/")
        if ".." in inside.split("/"):  # outside of what this process sees
            continue
        if not controllers:
            yield root / inside
        elif "cpu" in controllers.split(","):
            yield root / controllers / inside
            yield root / "cpu" / inside


def _nr_throttled(path: Path) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == "nr_throttled" and value.strip().isdigit():
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
