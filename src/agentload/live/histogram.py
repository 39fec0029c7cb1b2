"""Mergeable histogram of durations with a stated relative error.

Buckets grow by (1 + e) / (1 - e), as in DDSketch; a value stands for its bucket with a relative
error of at most `RELATIVE_ERROR`. A percentile interpolates between two ranks as the analysis does,
so its error has the same bound. Standard library only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from agentload.turn_metrics import min_samples

RELATIVE_ERROR = 0.005
US_PER_S = 1_000_000

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
ZERO_KEY = -1  # the bucket of 0 us; key k holds (growth^(k-1), growth^k] us
MAX_KEY = 3_500  # 18 days
_KEPT_KEYS = 1 << 16


class _Keys(dict[int, int]):
    """Bucket of a whole number of microseconds; remembered, since gaps repeat."""

    def __missing__(self, value_us: int) -> int:
        if len(self) >= _KEPT_KEYS:
            self.clear()
        key = ZERO_KEY
        if value_us > 0:
            key = min(math.ceil(math.log(value_us) / _LOG_GROWTH), MAX_KEY)
        self[value_us] = key
        return key


_keys = _Keys()


def key_of(value_us: int) -> int:
    """The bucket that holds this many microseconds; those below 1 share the bucket of 0."""
    return _keys[value_us]


def value_s(key: int) -> float:
    """What a bucket stands for, in seconds: within `RELATIVE_ERROR` of all it holds."""
    if key == ZERO_KEY:
        return 0.0
    return 2.0 * math.exp(key * _LOG_GROWTH) / (_GROWTH + 1.0) / US_PER_S


class LogHistogram:
    """Sparse counts per bucket; count, smallest, largest, sum are exact to the microsecond."""

    __slots__ = ("bins", "max_us", "min_us", "sum_us")

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()
        self.min_us: int | None = None
        self.max_us: int | None = None
        self.sum_us = 0

    def add_us(self, values_us: Iterable[int]) -> list[int]:
        """Count whole microseconds; returns the bucket of each."""
        values = values_us if isinstance(values_us, list | tuple) else list(values_us)
        if not values:
            return []
        keys = list(map(_keys.__getitem__, values))
        self.bins.update(keys)
        self.sum_us += sum(values)
        self.widen(min(values), max(values))
        return keys

    def add_s(self, value_s: float) -> list[int]:
        return self.add_us((round(value_s * US_PER_S),))

    def widen(self, min_us: int | None, max_us: int | None) -> None:
        """Take another part's smallest and largest value into account."""
        if min_us is not None and (self.min_us is None or min_us < self.min_us):
            self.min_us = min_us
        if max_us is not None and (self.max_us is None or max_us > self.max_us):
            self.max_us = max_us

    def merge(self, other: LogHistogram) -> None:
        """Add another histogram's values to this one."""
        self.bins.update(other.bins)
        self.sum_us += other.sum_us
        self.widen(other.min_us, other.max_us)

    @classmethod
    def sum_of(cls, parts: Iterable[LogHistogram]) -> LogHistogram:
        total = cls()
        for part in parts:
            total.merge(part)
        return total

    @property
    def count(self) -> int:
        return self.bins.total()

    @property
    def sum_s(self) -> float:
        return self.sum_us / US_PER_S

    @property
    def min_s(self) -> float | None:
        return None if self.min_us is None else self.min_us / US_PER_S

    @property
    def max_s(self) -> float | None:
        return None if self.max_us is None else self.max_us / US_PER_S

    def percentiles_s(self, qs: Iterable[float]) -> list[float | None]:
        """Percentiles in seconds; None where there are fewer values than `min_samples(q)`.

        Linear interpolation at position q x (n - 1), never outside the smallest and largest value.
        """
        found = percentiles_of(self.bins, qs)
        low, high = self.min_s, self.max_s
        if low is None or high is None:
            return found
        return [None if value is None else min(max(value, low), high) for value in found]

    def buckets(self) -> Iterator[tuple[float, int]]:
        """(upper bound in seconds, count) of the buckets in use, ascending."""
        for key in sorted(k for k, n in self.bins.items() if n > 0):
            bound_us = 0.0 if key == ZERO_KEY else math.exp(key * _LOG_GROWTH)
            yield bound_us / US_PER_S, self.bins[key]


def percentiles_of(bins: Mapping[int, int], qs: Iterable[float]) -> list[float | None]:
    """Percentiles in seconds of counts per bucket; None with too few of them."""
    keys = sorted(key for key, count in bins.items() if count > 0)
    count = sum(bins[key] for key in keys)
    return [
        _percentile(bins, keys, q * (count - 1)) if count >= min_samples(q) else None for q in qs
    ]


def _percentile(bins: Mapping[int, int], keys: list[int], position: float) -> float:
    low_rank = math.floor(position)
    seen = 0
    for place, key in enumerate(keys):
        seen += bins[key]
        if seen > low_rank:
            low_s = value_s(key)
            if seen > low_rank + 1 or place + 1 == len(keys):
                return low_s
            return low_s + (value_s(keys[place + 1]) - low_s) * (position - low_rank)
    raise ValueError("a percentile of no values")
