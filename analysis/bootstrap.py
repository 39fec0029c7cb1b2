"""Bootstrap of percentiles, means and ratios over sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

DRAWS = 500
MAX_GROUPS = 4096  # ranks of more turns than this are grouped: memory and time stay bounded

# A bootstrapped percentile jumps from one record to the next, which makes intervals lumpy and too
# wide around the median. Each draw takes the mean of percentiles around q instead, weighted by a
# normal density over the standard error of the rank. Not in the far tail, where the average of what
# lies around a percentile is steadier than the percentile is.
SMOOTH_UP_TO = 0.95
_OFFSETS = np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
_OFFSET_WEIGHTS = np.exp(-(_OFFSETS**2) / 2) / np.exp(-(_OFFSETS**2) / 2).sum()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of one arm: its value, the value that the draws scatter around, the draws."""

    value: float
    center: float
    draws: np.ndarray


def session_weights(sessions: int, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """How often each session is drawn: shape (draws, sessions), each row adds up to `sessions`."""
    rng = np.random.default_rng(seed)
    share = np.full(sessions, 1.0 / sessions)
    return rng.multinomial(sessions, share, draws).astype(np.float32)


def ratio_estimate(
    part: np.ndarray, whole: np.ndarray, session: np.ndarray, weights: np.ndarray
) -> Estimate:
    """Sum of `part` / sum of `whole`; a mean when `whole` is 1 for every turn."""
    sessions = weights.shape[1]
    parts = np.bincount(session, part, minlength=sessions)
    wholes = np.bincount(session, whole, minlength=sessions)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(parts.sum() / wholes.sum())
        return Estimate(value, value, (weights @ parts) / (weights @ wholes))


def percentile_estimate(
    values: np.ndarray, session: np.ndarray, weights: np.ndarray, q: float
) -> Estimate:
    """The pooled percentile by linear interpolation between ranks."""
    counts, levels = _rank_counts(values, session, weights.shape[1])
    spread = math.sqrt(q * (1.0 - q) / len(values)) if q <= SMOOTH_UP_TO else 0.0
    once = np.ones((1, weights.shape[1]), dtype=np.float32)
    center = _smooth_percentile(counts, levels, once, q, spread)[0]
    draws = _smooth_percentile(counts, levels, weights, q, spread)
    return Estimate(float(np.quantile(values, q)), float(center), draws)


def _rank_counts(
    values: np.ndarray, session: np.ndarray, sessions: int
) -> tuple[np.ndarray, np.ndarray]:
    """(turns per session and rank group, mean value of each rank group)."""
    order = np.argsort(values, kind="stable")
    n = len(values)
    groups = min(n, MAX_GROUPS)
    group = np.arange(n) * groups // n
    counts = np.zeros((sessions, groups), dtype=np.float32)
    np.add.at(counts, (session[order], group), 1.0)
    return counts, np.bincount(group, values[order]) / np.bincount(group)


def _smooth_percentile(
    counts: np.ndarray, levels: np.ndarray, weights: np.ndarray, q: float, spread: float
) -> np.ndarray:
    cumulative = np.cumsum(weights @ counts, axis=1, dtype=np.float64)
    draws, groups = cumulative.shape
    last_rank = cumulative[:, -1] - 1
    # All draws in one ascending line, so that one binary search finds the ranks of all of them.
    shift = np.arange(draws) * (cumulative[:, -1].max() + 1)
    line = (cumulative + shift[:, None]).ravel()
    first = np.arange(draws) * groups

    def level_at(rank: np.ndarray) -> np.ndarray:
        found: np.ndarray = levels[np.searchsorted(line, rank + shift, side="right") - first]
        return found

    total = np.zeros(draws)
    for offset, weight in zip(_OFFSETS, _OFFSET_WEIGHTS, strict=True):
        position = min(max(q + offset * spread, 0.0), 1.0) * last_rank
        low, high = np.floor(position), np.ceil(position)
        at_low = level_at(low)
        total += weight * (at_low + (level_at(high) - at_low) * (position - low))
    return total


def interval(estimates: list[Estimate], factors: list[float], level: float) -> tuple[float, float]:
    """Interval of a linear combination of estimates that were drawn with the same weights.

    Symmetric, with Student's t for the number of sessions behind it. The value itself always lies
    inside.
    """
    value = sum(f * e.value for f, e in zip(factors, estimates, strict=True))
    center = sum(f * e.center for f, e in zip(factors, estimates, strict=True))
    draws = sum(f * e.draws for f, e in zip(factors, estimates, strict=True))
    spread = float(np.nanstd(draws, ddof=1))
    half = spread * level
    return min(center - half, value), max(center + half, value)


def ratio_interval(over: Estimate, under: Estimate, level: float) -> tuple[float, float] | None:
    """Interval of one statistic divided by another, symmetric on the logarithmic scale.

    None unless both are above 0 in every draw.
    """
    if min(over.value, under.value, over.draws.min(), under.draws.min()) <= 0:
        return None
    half = level * float(np.std(np.log(over.draws / under.draws), ddof=1))
    center = math.log(over.center / under.center)
    value = over.value / under.value
    return min(math.exp(center - half), value), max(math.exp(center + half), value)


def t_factor(sessions: int, confidence: float) -> float:
    """Student's t quantile for `sessions` - 1 degrees of freedom, times sqrt(n / (n - 1)).

    The second factor makes up for the bootstrap's variance, which divides by n. Expansion 26.7.5
    of Abramowitz and Stegun; below 0.1 % off from 9 degrees of freedom on.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    df = sessions - 1
    t = (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )
    return t * math.sqrt(sessions / df)
