"""Summary of one measured quantity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from agentload.turn_metrics import comfortable_samples, min_samples
from analysis.gap_histogram import GapHistogram

QS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles by linear interpolation on pooled records; None = too few samples.

    A percentile needs ceil(1 / (1 - q)) samples. Those with fewer than ceil(10 / (1 - q)) are
    named in `few_samples`.
    """

    n: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    few_samples: tuple[str, ...] = ()


def distribution(values: np.ndarray) -> Distribution:
    """Of the values that were measured (not NaN)."""
    known = values[~np.isnan(values)]
    n = len(known)
    if not n:
        return Distribution(0)
    shown = _shown(n)
    found = dict(zip(shown, np.quantile(known, [QS[name] for name in shown]), strict=True))
    return Distribution(
        n=n,
        mean=float(known.mean()),
        std=float(known.std(ddof=1)) if n > 1 else None,
        min=float(known.min()),
        max=float(known.max()),
        few_samples=_few(n),
        **{name: float(value) for name, value in found.items()},
    )


def gap_distribution(gaps: GapHistogram) -> Distribution:
    """Of the pooled gaps of a histogram."""
    n, limits = gaps.count, gaps.range_s()
    if limits is None:
        return Distribution(0)
    return Distribution(
        n=n,
        mean=gaps.mean(),
        std=gaps.std(),
        min=limits[0],
        max=limits[1],
        few_samples=_few(n),
        **{name: gaps.percentile(QS[name]) for name in _shown(n)},
    )


def _shown(n: int) -> list[str]:
    return [name for name, q in QS.items() if n >= min_samples(q)]


def _few(n: int) -> tuple[str, ...]:
    return tuple(name for name in _shown(n) if n < comfortable_samples(QS[name]))


def ratio(part: float, whole: float) -> float | None:
    """`part / whole`; None when there is no whole."""
    return part / whole if whole > 0 and math.isfinite(part) else None


def mean_of(values: np.ndarray) -> float | None:
    """Mean of the measured values; None without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def ratio_of_sums(turns: pd.DataFrame, part: str, whole: str) -> float | None:
    """Sum / sum over the turns in which both were measured; None when there are none."""
    both = (turns[part].notna() & turns[whole].notna()).to_numpy()
    return ratio(float(turns[part][both].sum()), float(turns[whole][both].sum()))
