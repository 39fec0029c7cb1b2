"""A histogram of a server's `/metrics` page over a stretch of time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantile:
    """A histogram's quantile; in the last bucket it is only known to be `value_s` or more."""

    value_s: float
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Histogram:
    """Increase of a histogram's buckets: upper bounds ascending, cumulative counts, sum, count."""

    bounds_s: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum_s: float
    count: float

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.count if self.count > 0 else None

    def quantile(self, q: float) -> Quantile | None:
        """Linear inside the bucket, the first of which starts at 0; None without observations."""
        if not self.cumulative or self.cumulative[-1] <= 0:
            return None
        rank = q * self.cumulative[-1]
        low_bound, low_count = 0.0, 0.0
        for bound, count in zip(self.bounds_s, self.cumulative, strict=True):
            if count >= rank:
                if math.isinf(bound):
                    break
                inside = (rank - low_count) / (count - low_count) if count > low_count else 0.0
                return Quantile(low_bound + (bound - low_bound) * inside, is_bound=False)
            low_bound, low_count = bound, count
        return Quantile(low_bound, is_bound=True)

    def count_above(self, bound_s: float) -> float | None:
        """Observations certain to be above `bound_s`: beyond the first bucket bound from it on."""
        for bound, count in zip(self.bounds_s, self.cumulative, strict=True):
            if bound >= bound_s:
                return self.cumulative[-1] - count
        return None
