"""Counts of durations in bins of one percent."""

import math

_WIDTH = math.log(1.01)


class Histogram:
    """Mergeable histogram of positive durations in seconds; a quantile is true to 0.5 %."""

    __slots__ = ("bins", "count", "total_s")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0
        self.total_s = 0.0

    def add(self, value_s: float, times: int = 1) -> None:
        """Count `times` durations of `value_s` (> 0)."""
        key = math.floor(math.log(value_s) / _WIDTH)
        self.bins[key] = self.bins.get(key, 0) + times
        self.count += times
        self.total_s += value_s * times

    def add_ramp(self, first_s: float, growth_s: float, steps: int, times: int) -> None:
        """Count, `times` each, the durations first, first + growth, ... (`steps` of them)."""
        if steps == 1:
            self.add(first_s, times)
            return
        done = 0
        while done < steps:
            value = first_s + growth_s * done
            key = math.floor(math.log(value) / _WIDTH)
            until = steps
            if growth_s > 0:
                edge = (math.exp((key + 1) * _WIDTH) - first_s) / growth_s
                if edge < steps:
                    until = max(done + 1, math.ceil(edge))
            self.bins[key] = self.bins.get(key, 0) + (until - done) * times
            done = until
        self.count += steps * times
        self.total_s += times * steps * (first_s + growth_s * (steps - 1) / 2)

    def merge(self, other: "Histogram") -> None:
        """Add another histogram's counts to this one."""
        for key, times in other.bins.items():
            self.bins[key] = self.bins.get(key, 0) + times
        self.count += other.count
        self.total_s += other.total_s

    def quantile(self, share: float) -> float | None:
        """The duration in seconds that a `share` (0..1) does not exceed; None when empty."""
        if not self.count:
            return None
        wanted = share * self.count
        seen = 0
        for key in sorted(self.bins):
            seen += self.bins[key]
            if seen >= wanted:
                break
        return math.exp((key + 0.5) * _WIDTH)
