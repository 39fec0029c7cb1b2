"""Differences between arms, paired turn by turn.

Turns of one session are not independent, so whole sessions are drawn for the intervals. The same
draw is applied to every arm, because the arms ran the same sessions: what they share cancels out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from agentload.turn_metrics import comfortable_samples
from analysis.bootstrap import (
    CONFIDENCE,
    Estimate,
    Ratio,
    percentile_estimate,
    percentile_interval,
    ratio_estimate,
    relative_interval,
    session_weights,
    studentised_interval,
    t_factor,
)
from analysis.metrics import Arm, slo_met

MIN_SESSIONS = 10
MIN_SESSIONS_FOR_P99 = 20  # one turn in a hundred: those of few sessions decide it

KEY = ["seed", "repeat", "session_id", "turn_index"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """A figure that can be compared: a percentile or mean of `column`, or a ratio of two columns.

    `good` says whether less or more of it is better.
    """

    name: str
    label: str
    column: str
    kind: Literal["percentile", "mean", "ratio"]
    q: float = 0.5
    whole: str = ""
    unit: Literal["s", "share", "s per 1k tokens"] = "s"
    good: Literal["less", "more"] = "less"

    @property
    def min_turns(self) -> int:
        """Paired turns an interval needs: ten expected beyond a percentile, ten for the others."""
        return comfortable_samples(self.q) if self.kind == "percentile" else MIN_SESSIONS

    @property
    def min_sessions(self) -> int:
        """Paired sessions an interval needs."""
        return MIN_SESSIONS_FOR_P99 if self.kind == "percentile" and self.q > 0.95 else MIN_SESSIONS


STATISTICS = (
    Statistic("ttft_p50", "TTFT P50", "ttft_s", "percentile", 0.5),
    Statistic("ttft_p90", "TTFT P90", "ttft_s", "percentile", 0.9),
    Statistic("ttft_p99", "TTFT P99", "ttft_s", "percentile", 0.99),
    Statistic("ttft_mean", "TTFT mean", "ttft_s", "mean"),
    Statistic("e2e_p50", "E2E P50", "e2e_s", "percentile", 0.5),
    Statistic("tpot_mean", "TPOT mean", "tpot_s", "mean"),
    Statistic("itl_p99_mean", "ITL P99 of a turn, mean", "itl_p99_s", "mean"),
    Statistic("itl_max_mean", "longest gap of a turn, mean", "itl_max_s", "mean"),
    Statistic("jitter_mean", "jitter, mean", "jitter_s", "mean"),
    Statistic(
        "stall_s_per_1k_tokens",
        "stalled s per 1,000 tokens",
        "stall_s_1k",
        "ratio",
        whole="stall_tokens",
        unit="s per 1k tokens",
    ),
    Statistic("slo_share", "turns within the SLO", "slo_met", "mean", unit="share", good="more"),
)


@dataclass(frozen=True, slots=True)
class Paired:
    """The turns that all arms have, row by row the same turn; `session` numbers the clusters."""

    frames: Mapping[str, pd.DataFrame]
    session: np.ndarray
    sessions: int


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference (or main effect, or interaction) of one statistic in one group of turns.

    `low` and `high` are None when `reason` says what is missing for an interval. `base` is the
    statistic of the arm that is compared with, on the paired turns. `ratio` is the interval of
    (other arm / base), for two arms with values above 0 only.
    """

    statistic: Statistic
    turns_of: str
    name: str
    base: float
    value: float
    low: float | None
    high: float | None
    turns: int
    sessions: int
    reason: str | None = None
    ratio: tuple[float, float] | None = None

    @property
    def relative(self) -> float | None:
        return self.value / self.base if self.base else None

    @property
    def is_clear(self) -> bool:
        """Zero is outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def no_larger_than(self) -> float | None:
        """Where the difference is not clear: no difference larger than this."""
        if self.low is None or self.high is None or self.is_clear:
            return None
        return max(abs(self.low), abs(self.high))


def pair(arms: Sequence[Arm]) -> Paired:
    """Match turns by seed, repeat, session and turn index; a turn counts where all arms have it.

    Runs of an arm with the same seed are repeats, matched in the order in which they began.
    Sessions with the same seed and id are one cluster over all repeats.
    """
    frames = {arm.name: _keyed(arm) for arm in arms}
    common: pd.Index[Any] | None = None
    for frame in frames.values():
        common = frame.index if common is None else common.intersection(frame.index)
    assert common is not None
    common = common.sort_values()
    clusters = pd.MultiIndex.from_arrays(
        [common.get_level_values("seed"), common.get_level_values("session_id")]
    )
    codes, names = pd.factorize(clusters)
    aligned = {name: frame.loc[common] for name, frame in frames.items()}
    return Paired(aligned, codes, len(names))


def _keyed(arm: Arm) -> pd.DataFrame:
    turns = arm.turns()
    seeds = [run.run.manifest.seed for run in arm.runs]
    order = sorted(
        range(len(seeds)), key=lambda i: arm.runs[i].run.manifest.wall_start_unix_s or 0.0
    )
    repeats: dict[int, int] = {}
    for i in order:
        repeats[i] = sum(1 for j in repeats if seeds[j] == seeds[i])
    run = turns["run"].to_numpy()
    turns["seed"] = np.array(seeds, dtype=object)[run]
    turns["repeat"] = np.array([repeats[i] for i in range(len(seeds))])[run]
    turns["session_id"] = turns["session_id"].astype(object)
    slos = arm.runs[0].run.manifest.scenario.get("slos")
    turns["slo_met"] = slo_met(turns, slos if isinstance(slos, dict) else {})
    turns["stall_s_1k"] = turns["stall_s"] * 1000
    turns["stall_tokens"] = turns["output_tokens"].where(turns["stall_s"].notna())
    turns = turns[turns["measured"].to_numpy()]
    return turns.drop_duplicates(KEY, keep="last").set_index(KEY)


def contrast(
    paired: Paired,
    statistic: Statistic,
    factors: Mapping[str, float],
    name: str,
    base: str,
    turn_classes: Sequence[str],
    turns_of: str,
) -> Effect | None:
    """Sum of factor x statistic over arms, among paired turns of `turn_classes`.

    None when no turn has the statistic in all of the arms.
    """
    wanted = [c for c in (statistic.column, statistic.whole) if c]
    keep = _class_mask(paired.frames[base], turn_classes)
    for arm in factors:
        frame = paired.frames[arm]
        keep &= frame[wanted].notna().all(axis=1).to_numpy()
        if statistic.column != "slo_met":
            keep &= frame["counted"].to_numpy(dtype=bool)
    if not keep.any():
        return None
    session, names = pd.factorize(paired.session[keep])
    weights = session_weights(max(len(names), 1))
    estimates = {
        arm: _estimate(paired.frames[arm][keep], statistic, session, weights) for arm in factors
    }
    value = sum(f * estimates[arm].value for arm, f in factors.items())
    reason = _shortage(statistic, int(keep.sum()), len(names))
    low, high, ratio = None, None, None
    if reason is None:
        t = t_factor(len(names), CONFIDENCE)
        low, high = _interval(statistic, estimates, factors, weights, t)
        if len(factors) == 2:
            other = next(arm for arm in factors if arm != base)
            over, under = estimates[other], estimates[base]
            ratio = relative_interval(over, under, weights, t, statistic.q)
    return Effect(
        statistic,
        turns_of,
        name,
        estimates[base].value,
        value,
        low,
        high,
        int(keep.sum()),
        len(names),
        reason,
        ratio,
    )


def _class_mask(frame: pd.DataFrame, turn_classes: Sequence[str]) -> np.ndarray:
    return frame["turn_class"].astype(object).isin(list(turn_classes)).to_numpy().copy()


def _estimate(
    turns: pd.DataFrame, statistic: Statistic, session: np.ndarray, weights: np.ndarray
) -> Estimate | Ratio:
    values = turns[statistic.column].to_numpy(dtype=float)
    if statistic.kind == "percentile":
        return percentile_estimate(values, session, weights, statistic.q)
    whole = turns[statistic.whole].to_numpy(dtype=float) if statistic.whole else np.ones(len(turns))
    return ratio_estimate(values, whole, session, weights)


def _interval(
    statistic: Statistic,
    estimates: Mapping[str, Estimate | Ratio],
    factors: Mapping[str, float],
    weights: np.ndarray,
    t: float,
) -> tuple[float, float]:
    by_factor = list(factors.values())
    percentiles = [e for e in estimates.values() if isinstance(e, Estimate)]
    if percentiles:
        return percentile_interval(percentiles, by_factor, t, statistic.q)
    ratios = [e for e in estimates.values() if isinstance(e, Ratio)]
    return studentised_interval(ratios, by_factor, weights)


def _shortage(statistic: Statistic, turns: int, sessions: int) -> str | None:
    if sessions < statistic.min_sessions:
        return f"{sessions} paired sessions, needs {statistic.min_sessions}"
    if turns < statistic.min_turns:
        return f"{turns} paired turns, needs {statistic.min_turns}"
    return None
