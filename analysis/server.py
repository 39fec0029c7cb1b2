"""What a server's `/metrics` pages say about a stretch of time.

Counters are summed from scrape to scrape, so that a restart in between is seen. Series of several
engines or replicas are added before any ratio is formed. A metric that is not there is None.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentload.recording.meanings import ALIASES
from agentload.recording.record import ScrapeSample
from analysis.csv_rows import Block, Column, ReadReport, columns_of, read_blocks
from analysis.csv_table import numbers
from analysis.faults import FaultLog
from analysis.server_histogram import Histogram

_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
_WANTED = frozenset(n + s for names in ALIASES.values() for n in names for s in _SUFFIXES)

Labels = tuple[tuple[str, str], ...]
Moment = tuple[str, float]  # endpoint and time of a scrape


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with one set of labels on one endpoint; times ascend."""

    endpoint: str
    metric: str
    labels: dict[str, str]
    times_s: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Increase:
    """By how much a counter grew, and how often it started again from 0.

    With a restart the amount is a lower bound: what was counted just before it is lost.
    """

    amount: float
    restarts: int


@dataclass(frozen=True, slots=True)
class HitRate:
    """Cached share of prompt tokens. From a gauge it covers more than the stretch asked for."""

    rate: float
    from_gauge: bool
    by_engine: tuple[float, ...] = ()


@dataclass(slots=True)
class Scrape:
    """All kept series of a run, by metric name. Times are seconds since the run's start."""

    by_metric: dict[str, list[Series]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_metric)

    def find(self, meaning: str, suffix: str = "") -> list[Series]:
        """The series of the first name for `meaning` that is there; empty when none is."""
        suffixes = (suffix,) if suffix else ("_total", "")
        for name in ALIASES[meaning]:
            for ending in suffixes:
                found = self.by_metric.get(name + ending)
                if found:
                    return found
        return []

    def between(self, from_s: float, to_s: float) -> Scrape:
        """The samples of a stretch, with the last one before it and the first one after it.

        The former is the counters' baseline. The latter holds what finished since the last sample
        inside: servers observe a request when it ends.
        """
        cut = {m: [_cut(s, from_s, to_s) for s in all_] for m, all_ in self.by_metric.items()}
        return Scrape({m: [s for s in all_ if len(s.times_s)] for m, all_ in cut.items()})

    def of_endpoint(self, endpoint: str) -> Scrape:
        """The series of one page."""
        own = {m: [s for s in all_ if s.endpoint == endpoint] for m, all_ in self.by_metric.items()}
        return Scrape({m: series for m, series in own.items() if series})

    def increase(self, meaning: str) -> Increase | None:
        """Growth of a counter over all its series; None when it is not exported."""
        series = self.find(meaning)
        if not series:
            return None
        begun = self._begun()
        return Increase(sum(_increase(s, begun) for s in series), len(_restarts(series)))

    def restarts(self) -> int:
        """Moments at which a server's counters started again or its start time changed."""
        return len(self._begun())

    def _begun(self) -> set[Moment]:
        """The moments of `restarts`. A counter that is past its old value shows none by itself."""
        meanings = ("prefix_cache_queries", "prefix_cache_hits", "generation_tokens", "finished")
        counters = [s for meaning in meanings for s in self.find(meaning)]
        changed = {
            (s.endpoint, float(t))
            for s in self.find("process_start")
            for t in s.times_s[1:][np.diff(s.values) != 0]
        }
        return _restarts(counters) | changed

    def total(self, meaning: str) -> tuple[np.ndarray, np.ndarray] | None:
        """(times, values) of a gauge added over engines and replicas."""
        return _combined(self.find(meaning), np.sum)

    def spread(self, meaning: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """(times, mean, maximum) over engines and replicas of a gauge that is a fraction."""
        series = self.find(meaning)
        mean, most = _combined(series, np.mean), _combined(series, np.max)
        return None if mean is None or most is None else (mean[0], mean[1], most[1])

    def hit_rate(self) -> HitRate | None:
        """Prefix-cache hits / queries, both in tokens; the old gauge only when nothing else is."""
        queries, hits = self.find("prefix_cache_queries"), self.find("prefix_cache_hits")
        if queries and hits:
            begun = self._begun()
            asked = sum(_increase(s, begun) for s in queries)
            if asked <= 0:
                return None
            found = sum(_increase(s, begun) for s in hits)
            return HitRate(found / asked, False, tuple(_engine_rates(queries, hits, begun)))
        gauge = self.find("prefix_cache_hit_rate")
        last = [float(s.values[-1]) for s in gauge if s.values[-1] >= 0]  # -1: caching is off
        return HitRate(sum(last) / len(last), True) if last else None

    def histogram(self, meaning: str) -> Histogram | None:
        """Increase of all series of a histogram, added bucket by bucket; None when absent."""
        begun = self._begun()
        buckets: dict[float, list[float]] = {}
        for series in self.find(meaning, "_bucket"):
            bound = _bound(series.labels.get("le", ""))
            if bound is not None:
                buckets.setdefault(bound, []).append(_increase(series, begun))
        whole = max(map(len, buckets.values()), default=0)  # servers can have different bounds
        sums, counts = self.find(meaning, "_sum"), self.find(meaning, "_count")
        if not sums or not counts:
            return None
        bounds = tuple(sorted(b for b, found in buckets.items() if len(found) == whole))
        return Histogram(
            bounds,
            tuple(sum(buckets[b]) for b in bounds),
            sum(_increase(s, begun) for s in sums),
            sum(_increase(s, begun) for s in counts),
        )

    def labels_of(self, meaning: str) -> dict[str, str]:
        """Labels of the first series of an info metric; empty when absent."""
        series = self.find(meaning)
        return series[0].labels if series else {}


def load_scrape(path: Path | None, log: FaultLog, *, finished: bool = True) -> Scrape:
    """Read `scrape.csv`, keeping the metrics of `ALIASES` only."""
    if path is None:
        return Scrape()
    columns = columns_of(ScrapeSample)
    blocks = read_blocks(path, columns, log, ReadReport(), finished=finished)
    return scrape_of(_wanted_samples(path.name, columns, blocks, log))


def scrape_of(samples: Iterable[ScrapeSample]) -> Scrape:
    """Group samples into series, in order of time."""
    grouped: dict[tuple[str, str, str], tuple[array[float], array[float]]] = {}
    for s in samples:
        times, values = grouped.setdefault(
            (s.endpoint, s.metric, s.labels), (array("d"), array("d"))
        )
        times.append(s.time_s)
        values.append(s.value)
    scrape = Scrape()
    for (endpoint, metric, labels), (times, values) in grouped.items():
        order = np.argsort(np.array(times), kind="stable")
        series = Series(
            endpoint, metric, _labels(labels), np.array(times)[order], np.array(values)[order]
        )
        scrape.by_metric.setdefault(metric, []).append(series)
    return scrape


def _wanted_samples(
    file: str, columns: list[Column], blocks: Iterable[Block], log: FaultLog
) -> Iterator[ScrapeSample]:
    by_name = {c.name: c for c in columns}
    for block in blocks:
        wanted = [i for i, m in enumerate(block.cells["metric"]) if m in _WANTED]
        cells = {name: [column[i] for i in wanted] for name, column in block.cells.items()}
        lines = [block.lines[i] for i in wanted]
        bad: set[int] = set()
        times = numbers(cells["time_s"], by_name["time_s"], file, lines, log, bad)
        values = numbers(cells["value"], by_name["value"], file, lines, log, bad)
        for i, (endpoint, metric, labels) in enumerate(
            zip(cells["endpoint"], cells["metric"], cells["labels"], strict=True)
        ):
            if i not in bad:
                yield ScrapeSample(float(times[i]), endpoint, metric, labels, float(values[i]))


def _labels(text: str) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _bound(text: str) -> float | None:
    try:
        return float(text)  # "+Inf" is one
    except ValueError:
        return None


def _cut(series: Series, from_s: float, to_s: float) -> Series:
    start = max(int(np.searchsorted(series.times_s, from_s, "right")) - 1, 0)
    stop = int(np.searchsorted(series.times_s, to_s, "left")) + 1
    part = slice(start, stop)
    return Series(
        series.endpoint, series.metric, series.labels, series.times_s[part], series.values[part]
    )


def _increase(series: Series, begun: set[Moment]) -> float:
    steps = np.diff(series.values)
    again = steps < 0
    if begun:
        times = series.times_s[1:].tolist()
        again |= np.array([(series.endpoint, t) in begun for t in times], dtype=bool)
    return float(np.where(again, series.values[1:], steps).sum())


def _restarts(series: list[Series]) -> set[Moment]:
    return {(s.endpoint, float(t)) for s in series for t in s.times_s[1:][np.diff(s.values) < 0]}


def _combined(
    series: list[Series], how: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Series of one gauge at common times; one without a sample at a time holds its last value."""
    if not series:
        return None
    times = np.unique(np.concatenate([s.times_s for s in series]))
    held = np.full((len(series), len(times)), np.nan)
    for row, s in enumerate(series):
        last = np.searchsorted(s.times_s, times, "right") - 1
        held[row, last >= 0] = s.values[last[last >= 0]]
    whole = ~np.isnan(held).any(axis=0)
    return times[whole], how(held[:, whole], axis=0)


def _engine_rates(queries: list[Series], hits: list[Series], begun: set[Moment]) -> Iterator[float]:
    def key(s: Series) -> tuple[str, Labels]:
        return s.endpoint, tuple(sorted(s.labels.items()))

    by_key = {key(s): s for s in hits}
    for asked in queries:
        found = by_key.get(key(asked))
        grown = _increase(asked, begun)
        if found is not None and grown > 0:
            yield _increase(found, begun) / grown
