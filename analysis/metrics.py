"""Figures of an arm, per turn class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.distribution import (
    Distribution,
    distribution,
    gap_distribution,
    mean_of,
    ratio,
    ratio_of_sums,
)
from analysis.gap_histogram import GapHistogram
from analysis.measured import CLASSES, Measured

LATER = "T2+"  # every class but cold
ALL = "all"

# The limits of a scenario's `slos` and the turn columns they apply to.
SLO_COLUMNS = {
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "itl_p99_s": "itl_p99_s",
    "e2e_s": "e2e_s",
}


@dataclass(frozen=True, slots=True)
class Sourced:
    """A figure and where it comes from; both None when no source has it."""

    value: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One turn class of one arm. Latencies are of counted turns: successful, plausible, measured.

    `turns` are the measured ones, failed and aborted ones included. Rates are per second of the
    measured window.
    """

    turn_class: str
    turns: int
    successes: int
    errors: int
    aborted: int
    error_rate: float | None
    errors_by_class: dict[str, int]
    implausible: int
    buffered: int
    ttft_s: Distribution
    effective_ttft_s: Distribution
    ttfo_s: Distribution
    e2e_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    itl_per_token_s: Distribution
    jitter_s: Distribution
    itl_std_s: Distribution
    lag_s: Distribution
    merged_gap_share: float | None
    late_gap_share: float | None
    stall_count: int | None
    stalled_turn_share: float | None
    stall_s_per_1k_tokens: float | None
    prompt_tokens: Distribution
    output_tokens: Distribution
    uncached_tokens: Distribution
    cache_hit: Sourced
    eligible_hit: float | None
    queue_s: Distribution
    prefill_s: Distribution
    frontend_s: Distribution
    goodput_per_s: float | None
    slo_share_of_all: float | None
    slo_share_of_successes: float | None
    output_tokens_per_s: float | None
    decode_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Arm:
    """All runs of one server configuration; figures pool their records."""

    name: str
    runs: tuple[Measured, ...]

    @property
    def seconds(self) -> float:
        return sum(run.window.seconds for run in self.runs)

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].run.manifest.settings

    def turns(self) -> pd.DataFrame:
        """Turns of all runs with their gap figures; `run` numbers the runs."""
        frames = []
        for number, run in enumerate(self.runs):
            g = run.gaps.per_turn
            frames.append(
                run.turns.assign(
                    run=number,
                    gap_count=g.gaps,
                    merged_gaps=g.merged,
                    late_gaps=g.late,
                    itl_std_s=g.std_s,
                    jitter_s=g.jitter_s,
                    itl_p99_s=g.p99_s,
                    itl_max_s=g.max_s,
                    stall_count=g.stall_count,
                    stall_s=g.stall_s,
                )
                if run.run.chunks_path
                else run.turns.assign(run=number, **_unmeasured_gaps(len(run.turns)))
            )
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def _unmeasured_gaps(turns: int) -> dict[str, np.ndarray]:
    names = ("gap_count", "merged_gaps", "late_gaps", "itl_std_s", "stall_s")
    return {name: np.full(turns, np.nan) for name in names}


def arms_of(runs: Sequence[Measured]) -> list[Arm]:
    """Runs grouped by the name of their arm, arms in the order of their first run."""
    names = list(dict.fromkeys(run.arm for run in runs))
    return [Arm(name, tuple(run for run in runs if run.arm == name)) for name in names]


def class_figures(arm: Arm, turns: pd.DataFrame | None = None) -> list[ClassFigures]:
    """Every class that has turns, then all classes but cold (T2+), then all.

    T2+ is there when more than one class goes into it. A percentile over all classes is decided by
    the few cold turns: `all` is for counts and rates.
    """
    turns = arm.turns() if turns is None else turns
    turns = turns[turns["measured"].to_numpy()]
    present = [name for name in CLASSES if (turns["turn_class"] == name).any()]
    later = [name for name in present if name != "cold"]
    groups = [(name, [name]) for name in present]
    if len(later) > 1:
        groups.append((LATER, later))
    groups.append((ALL, present))
    return [_figures(name, arm, turns, members) for name, members in groups]


def _figures(name: str, arm: Arm, turns: pd.DataFrame, members: list[str]) -> ClassFigures:
    mine = turns[turns["turn_class"].isin(members).to_numpy()]
    good = mine[mine["counted"].to_numpy()]
    status = mine["status"].astype(object)
    successes, errors = int((status == "success").sum()), int((status == "error").sum())
    latencies: dict[str, Any] = {
        column: distribution(good[column].to_numpy())
        for column in ("ttft_s", "effective_ttft_s", "ttfo_s", "e2e_s", "tpot_s")
    }
    sizes: dict[str, Any] = {
        column: distribution(good[column].to_numpy())
        for column in ("prompt_tokens", "output_tokens", "uncached_tokens")
    }
    return ClassFigures(
        turn_class=name,
        turns=len(mine),
        successes=successes,
        errors=errors,
        aborted=int((status == "aborted").sum()),
        error_rate=ratio(errors, successes + errors),
        errors_by_class=errors_by_class(mine),
        implausible=int(mine["implausible"].sum()),
        buffered=int(mine["flags"].astype(object).str.contains("buffered_stream").eq(True).sum()),
        **latencies,
        **sizes,
        **_gap_figures(arm, good, members),
        lag_s=distribution(mine["lag_s"].to_numpy()),
        cache_hit=_cache_hit(arm, good, name),
        eligible_hit=ratio_of_sums(good, "cached_tokens", "eligible_tokens"),
        queue_s=distribution(good["server_queue_s"].to_numpy()),
        prefill_s=distribution(good["server_prefill_s"].to_numpy()),
        frontend_s=distribution(good["frontend_s"].to_numpy()),
        **_slo_figures(arm, mine),
        output_tokens_per_s=ratio(float(good["output_tokens"].sum()), arm.seconds),
        decode_tokens_per_s=mean_of(good["tokens_per_s"].to_numpy()),
    )


def errors_by_class(turns: pd.DataFrame) -> dict[str, int]:
    """Failed turns by error class, most frequent first."""
    failed = turns.loc[(turns["status"] == "error").to_numpy(), "error_class"]
    counts = failed.astype(object).fillna("unknown").value_counts()
    return {str(name): int(count) for name, count in counts.items()}


def _cache_hit(arm: Arm, good: pd.DataFrame, name: str) -> Sourced:
    """Cached share of prompt tokens: per turn where usage says, for all turns from `/metrics`."""
    from_usage = ratio_of_sums(good, "cached_tokens", "prompt_tokens")
    if from_usage is not None:
        return Sourced(from_usage, "usage")
    rates = [run.scrape.hit_rate() for run in arm.runs] if name == ALL else []
    known = [rate for rate in rates if rate is not None]
    if len(known) != 1:  # ratios of several servers are not averaged
        return Sourced(None, None)
    return Sourced(known[0].rate, "metrics gauge" if known[0].from_gauge else "metrics counters")


def pooled_gaps(arm: Arm, members: Sequence[str], *, per_token: bool = False) -> GapHistogram:
    """The usable gaps of all counted turns of some classes."""
    parts = (
        hist
        for run in arm.runs
        for key, hist in (run.gaps.per_token if per_token else run.gaps.raw).items()
        if key >= 0 and CLASSES[key] in members
    )
    return GapHistogram.sum_of(parts)


def _gap_figures(arm: Arm, good: pd.DataFrame, members: list[str]) -> dict[str, Any]:
    usable = float(good["gap_count"].sum())
    merged, late = float(good["merged_gaps"].sum()), float(good["late_gaps"].sum())
    stalls = good["stall_count"].to_numpy()
    judged = ~np.isnan(stalls)
    tokens = float(good["output_tokens"][judged].sum())
    seconds = good["stall_s"][judged].sum(min_count=1)
    return {
        "itl_s": gap_distribution(pooled_gaps(arm, members)),
        "itl_per_token_s": gap_distribution(pooled_gaps(arm, members, per_token=True)),
        "jitter_s": distribution(good["jitter_s"].to_numpy()),
        "itl_std_s": distribution(good["itl_std_s"].to_numpy()),
        "merged_gap_share": ratio(merged, usable + merged + late),
        "late_gap_share": ratio(late, usable + merged + late),
        "stall_count": int(stalls[judged].sum()) if judged.any() else None,
        "stalled_turn_share": float((stalls[judged] > 0).mean()) if judged.any() else None,
        "stall_s_per_1k_tokens": ratio(float(seconds) * 1000, tokens),
    }


def slo_met(turns: pd.DataFrame, slos: dict[str, Any]) -> np.ndarray:
    """1 met, 0 missed, NaN without limits for the turn's class or when the turn was aborted.

    A limit is met at the limit. A failed turn misses. A limit on something that the turn does not
    have (TPOT of one token, P99 of few gaps) is met.
    """
    met = np.full(len(turns), np.nan)
    status = turns["status"].astype(object).to_numpy()
    for name, limits in slos.items():
        wanted = {c: limits.get(k) for k, c in SLO_COLUMNS.items()} if limits else {}
        given = {column: limit for column, limit in wanted.items() if limit is not None}
        if not given:
            continue
        mine = (turns["turn_class"] == name).to_numpy() & (status != "aborted")
        good = status == "success"
        for column, limit in given.items():
            good = good & ~(turns[column].to_numpy() > float(limit))
        met[mine] = good[mine]
    return met


def _slo_figures(arm: Arm, turns: pd.DataFrame) -> dict[str, Any]:
    slos = arm.runs[0].run.manifest.scenario.get("slos")
    met = slo_met(turns, slos if isinstance(slos, dict) else {})
    judged = ~np.isnan(met)
    success = judged & (turns["status"] == "success").to_numpy()
    good = float(met[judged].sum())
    any_judged = bool(judged.any())
    return {
        "goodput_per_s": ratio(good, arm.seconds) if any_judged else None,
        "slo_share_of_all": ratio(good, float(judged.sum())),
        "slo_share_of_successes": ratio(float(met[success].sum()), float(success.sum())),
    }
