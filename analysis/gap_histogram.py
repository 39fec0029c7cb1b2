"""Exact distribution of gaps in whole microseconds, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

DENSE_US = 1 << 18  # 0.26 s: nearly all gaps; longer ones are kept as (value, count) pairs
_LOOSE_LIMIT = 1 << 18
US_PER_S = 1e6


class GapHistogram:
    """Counts per whole microsecond; every statistic of it is that of the pooled gaps."""

    def __init__(self) -> None:
        self._dense = np.zeros(DENSE_US, dtype=np.int64)
        self._long_us = np.empty(0, dtype=np.int64)
        self._long_counts = np.empty(0, dtype=np.int64)
        self._points: tuple[np.ndarray, np.ndarray] | None = None  # until something is added

    def add(self, gaps_us: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count gaps of at least 0 us, each `weights` times (whole numbers), else once."""
        self._points = None
        short = gaps_us < DENSE_US
        counts = np.bincount(
            gaps_us[short], None if weights is None else weights[short], minlength=DENSE_US
        )
        self._dense += counts.astype(np.int64)
        long_us = gaps_us[~short]
        if len(long_us):
            more = np.ones(len(long_us), np.int64) if weights is None else weights[~short]
            self._add_long(long_us, more.astype(np.int64))

    def _add_long(self, long_us: np.ndarray, counts: np.ndarray) -> None:
        self._long_us = np.concatenate([self._long_us, long_us])
        self._long_counts = np.concatenate([self._long_counts, counts])
        if len(self._long_us) > _LOOSE_LIMIT:
            self._compact()

    def _compact(self) -> None:
        values, places = np.unique(self._long_us, return_inverse=True)
        self._long_counts = np.bincount(places, self._long_counts).astype(np.int64)
        self._long_us = values

    @classmethod
    def sum_of(cls, parts: Iterable[GapHistogram]) -> GapHistogram:
        """The histogram of all gaps of `parts`."""
        total = cls()
        for part in parts:
            total._dense += part._dense
            total._add_long(part._long_us, part._long_counts)
        return total

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """(gap in seconds, count), ascending, without zero counts."""
        if self._points is None:
            self._points = self._counted()
        return self._points

    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        self._compact()
        short = np.flatnonzero(self._dense)
        values = np.concatenate([short, self._long_us]) / US_PER_S
        return values, np.concatenate([self._dense[short], self._long_counts])

    @property
    def count(self) -> int:
        return int(self._dense.sum() + self._long_counts.sum())

    def percentile(self, q: float) -> float | None:
        """Linear interpolation between the nearest ranks, in seconds; None without gaps."""
        values, counts = self.points()
        if not len(values):
            return None
        last_rank = np.cumsum(counts) - 1
        position = q * float(last_rank[-1])
        low, high = np.searchsorted(last_rank, [np.floor(position), np.ceil(position)])
        step = float(values[high] - values[low])
        return float(values[low]) + step * (position - float(np.floor(position)))

    def mean(self) -> float | None:
        values, counts = self.points()
        return float((values * counts).sum() / counts.sum()) if len(values) else None

    def std(self) -> float | None:
        """Standard deviation with n - 1; None below two gaps."""
        values, counts = self.points()
        if not len(values) or counts.sum() < 2:
            return None
        mean = (values * counts).sum() / counts.sum()
        return float(np.sqrt((counts * (values - mean) ** 2).sum() / (counts.sum() - 1)))

    def range_s(self) -> tuple[float, float] | None:
        """(shortest, longest) gap in seconds; None without gaps."""
        values, _ = self.points()
        return (float(values[0]), float(values[-1])) if len(values) else None

    def count_above(self, bound_s: float) -> int:
        values, counts = self.points()
        return int(counts[values > bound_s].sum())
