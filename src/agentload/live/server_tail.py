"""The servers' figures as they are scraped, from the end of a run's `scrape.csv`."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from agentload.live.snapshot import ServerFigures
from agentload.recording.meanings import ALIASES

_GAUGES = ("running", "waiting", "kv_usage")
_COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "preemptions")
_MEANING = {
    name + suffix: (meaning, rank)
    for meaning in (*_GAUGES, *_COUNTERS)
    for rank, name in enumerate(ALIASES[meaning])
    for suffix in ("", "_total")
}
_COLUMNS = 5
_STALE_S = 5.0
_MOST_BYTES = 4_000_000

Key = tuple[str, str]  # endpoint, labels


@dataclass(slots=True)
class _Counter:
    """One series of a counter: its last value and its growth since measuring began."""

    last: float
    growth: float = 0.0

    def take(self, value: float, counts: bool) -> None:
        if counts:
            self.growth += value - self.last if value >= self.last else value
        self.last = value


@dataclass(slots=True)
class ServerTail:
    """Reads what was appended since the last call. Series of several engines are added.

    Where a meaning is exported under several names, the newest name is used.
    """

    path: Path
    time_s: float | None = None
    _read_bytes: int = 0
    _gauges: dict[str, dict[int, dict[Key, tuple[float, float]]]] = field(default_factory=dict)
    _counters: dict[str, dict[int, dict[Key, _Counter]]] = field(default_factory=dict)

    def read(self, counted_from_s: float | None) -> ServerFigures:
        """The figures now; counters count from this second of the run, None = not yet.

        Like the analysis, the last sample before that second is where counting begins.
        """
        for time_s, endpoint, metric, labels, value in self._new_rows():
            meaning, rank = _MEANING[metric]
            self.time_s = max(self.time_s or 0.0, time_s)
            key = (endpoint, labels)
            if meaning in _GAUGES:
                names = self._gauges.setdefault(meaning, {})
                names.setdefault(rank, {})[key] = (time_s, value)
                continue
            series = self._counters.setdefault(meaning, {}).setdefault(rank, {})
            if key in series:
                series[key].take(value, counted_from_s is not None and time_s >= counted_from_s)
            else:
                series[key] = _Counter(value)
        return self._figures()

    def _new_rows(self) -> list[tuple[float, str, str, str, float]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        wanted = [line for line in whole.split(b"\n") if _metric_of(line) in _MEANING_BYTES]
        text = b"\n".join(wanted).decode("utf-8", "replace")
        return [
            (float(row[0]), row[1], row[2], row[3], float(row[4]))
            for row in csv.reader(io.StringIO(text))
            if len(row) == _COLUMNS
        ]

    def _figures(self) -> ServerFigures:
        usage = self._current("kv_usage")
        asked, hit = self._growth("prefix_cache_queries"), self._growth("prefix_cache_hits")
        return ServerFigures(
            time_s=self.time_s,
            running=_sum(self._current("running")),
            waiting=_sum(self._current("waiting")),
            kv_usage=fmean(usage) if usage else None,
            kv_usage_max=max(usage, default=None),
            prefix_hit_ratio=hit / asked if hit is not None and asked else None,
            preemptions=self._growth("preemptions"),
        )

    def _current(self, meaning: str) -> list[float]:
        """The last values that are no older than a few scrapes: a dead server has no queue."""
        names = self._gauges.get(meaning)
        if not names or self.time_s is None:
            return []
        fresh_s = self.time_s - _STALE_S
        return [value for time_s, value in names[min(names)].values() if time_s >= fresh_s]

    def _growth(self, meaning: str) -> float | None:
        names = self._counters.get(meaning)
        return sum(c.growth for c in names[min(names)].values()) if names else None


_MEANING_BYTES = frozenset(name.encode() for name in _MEANING)


def _metric_of(line: bytes) -> bytes:
    """The third field; endpoints are URLs without quotes or commas of their own."""
    fields = line.split(b",", 3)
    return fields[2] if len(fields) > 3 else b""


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
