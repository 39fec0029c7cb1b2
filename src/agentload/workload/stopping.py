"""Whether a run may end before its stages do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentload.scenario.running import Stop

_Z_95 = 1.959964  # of the normal distribution, two-sided 95 %


def quantile_interval(ordered: Sequence[float], q: float) -> tuple[float, float] | None:
    """95 % interval of a quantile from a sorted sample, by order statistics.

    Ranks n q -+ z sqrt(n q (1 - q)), the normal approximation of the binomial (Conover, Practical
    Nonparametric Statistics, 3.2). None when a rank falls outside the sample: too few samples.
    """
    n = len(ordered)
    spread = _Z_95 * math.sqrt(n * q * (1 - q))
    low, high = math.floor(n * q - spread), math.ceil(n * q + spread)
    if low < 1 or high > n:
        return None
    return ordered[low - 1], ordered[high - 1]


def stop_reason(rule: Stop, elapsed_s: float, turns: int, ttfts_s: Sequence[float]) -> str | None:
    """Why the run ends now, None while it goes on.

    `elapsed_s`, `turns` and `ttfts_s` are of measured stages only; failed turns have no TTFT and
    count among `turns`.
    """
    if rule.after_s is not None and elapsed_s >= rule.after_s:
        return f"{rule.after_s:g} s are over"
    if rule.after_turns is not None and turns >= rule.after_turns:
        return f"{turns} turns are done"
    if rule.ttft_p99_interval is None or elapsed_s < rule.not_before_s:
        return None
    ordered = sorted(ttfts_s)
    interval = quantile_interval(ordered, 0.99)
    if interval is None:
        return None
    half = (interval[1] - interval[0]) / 2
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    if p99 > 0 and half / p99 <= rule.ttft_p99_interval:
        return f"P99 TTFT {p99:.3f} s is known within {half:.3f} s (95 %, {len(ordered)} turns)"
    return None
