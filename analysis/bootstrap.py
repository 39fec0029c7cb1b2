"""Bootstrap of percentiles, means and ratios over sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
DRAWS = 1000
WINDOW_SD = 6.0  # how far around a percentile draws are taken to reach, in standard errors of ranks
MAX_GROUPS = 1024  # more ranks than this in the window are grouped: memory and time stay bounded

# A bootstrapped median jumps from one record to the next, which makes its intervals too wide. Each
# draw takes the mean of percentiles around q instead, weighted by a normal density over the
# standard error of the rank. Not above the median, where the average of what lies around a
# percentile is steadier than the percentile is.
SMOOTH_UP_TO = 0.5
_OFFSETS = np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
_OFFSET_WEIGHTS = np.exp(-(_OFFSETS**2) / 2) / np.exp(-(_OFFSETS**2) / 2).sum()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A percentile of one arm: its value, the value that the draws scatter around, the draws."""

    value: float
    center: float
    draws: np.ndarray


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sum / sum of one arm: numerator and denominator of each session, and both in each draw."""

    parts: np.ndarray
    wholes: np.ndarray
    drawn_parts: np.ndarray
    drawn_wholes: np.ndarray

    @property
    def value(self) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(self.parts.sum() / self.wholes.sum())

    @property
    def center(self) -> float:
        return self.value

    @property
    def draws(self) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            found: np.ndarray = self.drawn_parts / self.drawn_wholes
            return found


def session_weights(sessions: int, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """How often each session is drawn: shape (draws, sessions), each row adds up to `sessions`."""
    rng = np.random.default_rng(seed)
    share = np.full(sessions, 1.0 / sessions)
    return rng.multinomial(sessions, share, draws).astype(np.float32)


def ratio_estimate(
    part: np.ndarray, whole: np.ndarray, session: np.ndarray, weights: np.ndarray
) -> Ratio:
    """Sum of `part` / sum of `whole`; a mean when `whole` is 1 for every turn."""
    sessions = weights.shape[1]
    parts = np.bincount(session, part, minlength=sessions)
    wholes = np.bincount(session, whole, minlength=sessions)
    return Ratio(parts, wholes, weights @ parts, weights @ wholes)


def percentile_estimate(
    values: np.ndarray, session: np.ndarray, weights: np.ndarray, q: float
) -> Estimate:
    """The pooled percentile by linear interpolation between ranks."""
    value = float(np.quantile(values, q))
    counts, levels = _rank_counts(values, session, weights.shape[1], q)
    spread = math.sqrt(q * (1.0 - q) / len(values)) if q <= SMOOTH_UP_TO else 0.0
    once = np.ones((1, weights.shape[1]), dtype=np.float32)
    center = _smooth_percentile(counts, levels, once, q, spread)[0] if spread else value
    draws = _smooth_percentile(counts, levels, weights, q, spread)
    return Estimate(value, float(center), draws)


def _rank_counts(
    values: np.ndarray, session: np.ndarray, sessions: int, q: float
) -> tuple[np.ndarray, np.ndarray]:
    """(turns per session and rank group, mean value of each rank group).

    All ranks that no draw comes near are one group below and one above.
    """
    order = np.argsort(values, kind="stable")
    n = len(values)
    low, high = _window(session[order], sessions, q)
    groups = min(high - low, MAX_GROUPS)
    place = np.arange(n)
    group = np.clip((place - low) * groups // (high - low), -1, groups) + 1
    counts = np.zeros((sessions, groups + 2), dtype=np.float32)
    np.add.at(counts, (session[order], group), 1.0)
    sizes = np.bincount(group, minlength=groups + 2)
    sums = np.bincount(group, values[order], minlength=groups + 2)
    levels = sums / np.maximum(sizes, 1)
    levels[0], levels[-1] = values[order[low]], values[order[high - 1]]
    return counts, levels


def _window(session_by_rank: np.ndarray, sessions: int, q: float) -> tuple[int, int]:
    """First and last rank + 1 that the percentile of a draw may fall on."""
    n = len(session_by_rank)
    center = q * (n - 1)
    below = np.bincount(session_by_rank[: int(center) + 1], minlength=sessions)
    all_ = np.bincount(session_by_rank, minlength=sessions)
    clustered = float(np.sqrt(((below - q * all_) ** 2).sum()))
    reach = WINDOW_SD * (clustered + math.sqrt(n * q * (1.0 - q))) + 2
    return max(math.floor(center - reach), 0), min(math.ceil(center + reach) + 1, n)


def _smooth_percentile(
    counts: np.ndarray, levels: np.ndarray, weights: np.ndarray, q: float, spread: float
) -> np.ndarray:
    cumulative = np.cumsum(weights @ counts, axis=1)  # whole numbers: exact up to 16 million
    draws, groups = cumulative.shape
    offsets, shares = (_OFFSETS, _OFFSET_WEIGHTS) if spread else (np.zeros(1), np.ones(1))
    position = np.clip(q + offsets * spread, 0.0, 1.0) * (cumulative[:, -1:].astype(float) - 1)
    low = np.floor(position)
    # All draws in one ascending line, so that one binary search finds the ranks of all of them.
    shift = np.arange(draws)[:, None] * (float(cumulative[:, -1].max()) + 1)
    ranks = np.stack([low, np.ceil(position)], axis=1) + shift[:, None]
    place = np.searchsorted((cumulative + shift).ravel(), ranks.ravel(), side="right")
    found = levels[place.reshape(ranks.shape) - np.arange(draws)[:, None, None] * groups]
    smoothed: np.ndarray = (found[:, 0] + (found[:, 1] - found[:, 0]) * (position - low)) @ shares
    return smoothed


def percentile_interval(
    estimates: Sequence[Estimate], factors: Sequence[float], t: float, q: float
) -> tuple[float, float]:
    """Interval of a linear combination of percentiles that were drawn with the same weights.

    `t` is Student's for the number of sessions (`t_factor`). Up to the median it is symmetric.
    Above, where draws are skewed, it reaches to the percentiles of the draws that a normal
    distribution has at -t and t. The value itself always lies inside.
    """
    value = sum(f * e.value for f, e in zip(factors, estimates, strict=True))
    center = sum(f * e.center for f, e in zip(factors, estimates, strict=True))
    draws = np.sum([f * e.draws for f, e in zip(factors, estimates, strict=True)], axis=0)
    if q <= SMOOTH_UP_TO:
        half = t * float(np.std(draws, ddof=1))
        low, high = center - half, center + half
    else:
        low, high = np.quantile(draws, [NormalDist().cdf(-t), NormalDist().cdf(t)])
    return min(float(low), value), max(float(high), value)


def studentised_interval(
    ratios: Sequence[Ratio], factors: Sequence[float], weights: np.ndarray
) -> tuple[float, float]:
    """Interval of a linear combination of ratios that were drawn with the same weights.

    The bootstrap-t: each draw is divided by its own standard error over sessions, so that a
    skewed population widens the side that it has to. Never narrower than Student's t.
    """
    value = sum(f * r.value for f, r in zip(factors, ratios, strict=True))
    draws = np.sum([f * r.draws for f, r in zip(factors, ratios, strict=True)], axis=0)
    error = float(_standard_errors(ratios, factors, np.ones((1, weights.shape[1])))[0])
    return _studentised(value, draws, error, _standard_errors(ratios, factors, weights), weights)


def _studentised(
    value: float, draws: np.ndarray, error: float, errors: np.ndarray, weights: np.ndarray
) -> tuple[float, float]:
    usable = errors > 1e-9 * error
    if error <= 0.0 or not usable.any():
        return value, value
    plain = student_t(weights.shape[1] - 1, CONFIDENCE)
    tails = [(1.0 - CONFIDENCE) / 2, (1.0 + CONFIDENCE) / 2]
    low, high = np.nanquantile((draws[usable] - value) / errors[usable], tails).tolist()
    return value - max(high, plain) * error, value + max(-low, plain) * error


def _standard_errors(
    ratios: Sequence[Ratio], factors: Sequence[float | np.ndarray], weights: np.ndarray
) -> np.ndarray:
    """Of each draw: sqrt(n / (n - 1) x sum over sessions of squared residuals).

    The residual of a session, sum of f (part - ratio x whole) / all wholes, is linear in its parts
    and wholes, so the sum of squares follows from the drawn sums of their products.
    """
    sessions = weights.shape[1]
    features = np.column_stack([x for r in ratios for x in (r.parts, r.wholes)])
    drawn = weights @ features
    size = features.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        coefficients = np.empty((len(weights), size))
        for i, factor in enumerate(factors):
            part, whole = drawn[:, 2 * i], drawn[:, 2 * i + 1]
            coefficients[:, 2 * i] = factor / whole
            coefficients[:, 2 * i + 1] = -factor * part / whole**2
    total = np.zeros(len(weights))
    for i in range(size):
        for j in range(i, size):
            product = weights @ (features[:, i] * features[:, j])
            twice = 1.0 if i == j else 2.0
            total += twice * coefficients[:, i] * coefficients[:, j] * product
    errors: np.ndarray = np.sqrt(np.maximum(total, 0.0) * sessions / (sessions - 1))
    return errors


def relative_interval(
    over: Estimate | Ratio, under: Estimate | Ratio, weights: np.ndarray, t: float, q: float
) -> tuple[float, float] | None:
    """Interval of one statistic divided by another: that of the difference of their logarithms.

    None unless both are above 0 in every draw.
    """
    if not min(over.value, under.value, over.draws.min(), under.draws.min()) > 0:
        return None
    if isinstance(over, Ratio) and isinstance(under, Ratio):
        low, high = _log_studentised(over, under, weights)
    else:
        low, high = percentile_interval([_log(over), _log(under)], [1.0, -1.0], t, q)
    return math.exp(low), math.exp(high)


def _log(of: Estimate | Ratio) -> Estimate:
    return Estimate(math.log(of.value), math.log(of.center), np.log(of.draws))


def _log_studentised(over: Ratio, under: Ratio, weights: np.ndarray) -> tuple[float, float]:
    """The logarithm of a ratio moves by 1 / ratio: the factors of the residuals."""
    ratios = [over, under]
    once = np.ones((1, weights.shape[1]))
    error = float(_standard_errors(ratios, [1.0 / over.value, -1.0 / under.value], once)[0])
    errors = _standard_errors(ratios, [1.0 / over.draws, -1.0 / under.draws], weights)
    value = math.log(over.value / under.value)
    return _studentised(value, np.log(over.draws / under.draws), error, errors, weights)


def t_factor(sessions: int, confidence: float) -> float:
    """Student's t for `sessions` - 1 degrees of freedom, times sqrt(n / (n - 1)).

    The second factor makes up for the bootstrap's variance, which divides by n.
    """
    return student_t(sessions - 1, confidence) * math.sqrt(sessions / (sessions - 1))


def student_t(df: int, confidence: float) -> float:
    """The two-sided quantile. Expansion 26.7.5 of Abramowitz and Stegun; below 0.1 % off from 9
    degrees of freedom on.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )
