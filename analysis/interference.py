"""How much of the stalled time other turns' prefills explain."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis.distribution import ratio
from analysis.gaps import Stalls
from analysis.measured import Measured

# Uncached tokens of the offender; a prefill below the first bound is too short to hold anyone up.
SIZE_EDGES = (512.0, 2_048.0, 8_192.0, 32_768.0, 98_304.0, float("inf"))
CHANCE_SHIFTS = 200
CONFIRM_FACTOR = 2.0
CONFIRM_SLACK = 3


@dataclass(frozen=True, slots=True)
class SizeShare:
    """Stalled seconds explained by prefills of at least `low` uncached tokens, not by larger."""

    low: float
    high: float
    prefills: int
    explained_s: float


@dataclass(frozen=True, slots=True)
class Interference:
    """Stalled seconds that fall into other turns' prefills on the same replica.

    `chance_share` is the mean share when the stalls are moved to random times of the run, and
    `chance_high_share` what 97.5 % of such moves stay below.
    """

    stalls: int
    stall_s: float
    explained_s: float
    chance_share: float | None
    chance_high_share: float | None
    by_size: tuple[SizeShare, ...]
    without_token_counts: int

    @property
    def explained_share(self) -> float | None:
        return ratio(self.explained_s, self.stall_s)


@dataclass(frozen=True, slots=True)
class StallCheck:
    """Gaps above `bound_s`: the client's against those in the server's own ITL histogram."""

    bound_s: float
    client_gaps: int
    server_gaps: float

    @property
    def confirmed(self) -> bool:
        return self.client_gaps <= CONFIRM_FACTOR * self.server_gaps + CONFIRM_SLACK


class Coverage:
    """How much of any stretch of time a set of intervals covers."""

    def __init__(self, starts_s: np.ndarray, ends_s: np.ndarray) -> None:
        order = np.argsort(starts_s)
        starts, ends = starts_s[order], np.maximum.accumulate(ends_s[order])
        new = np.ones(len(starts), dtype=bool)
        new[1:] = starts[1:] > ends[:-1]
        firsts = np.flatnonzero(new)
        lasts = np.append(firsts[1:] - 1, len(starts) - 1) if len(starts) else firsts
        self.starts_s, self.ends_s = starts[firsts], ends[lasts]
        lengths = self.ends_s - self.starts_s
        self._at = np.column_stack([self.starts_s, self.ends_s]).ravel()
        covered = np.column_stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)]).ravel()
        self._covered = covered

    def until(self, times_s: np.ndarray) -> np.ndarray:
        if not len(self._at):
            return np.zeros(len(times_s))
        covered: np.ndarray = np.interp(times_s, self._at, self._covered)
        return covered

    def between(self, from_s: np.ndarray, to_s: np.ndarray) -> np.ndarray:
        """Covered seconds of each stretch."""
        covered: np.ndarray = self.until(to_s) - self.until(from_s)
        return covered


def prefill_intervals(turns: pd.DataFrame) -> pd.DataFrame:
    """`start_s`, `end_s`, `uncached_tokens`, `replica`, `session_id` of every turn's prefill.

    It ends with the first chunk, and begins where the server says it was scheduled; without that,
    where the request was sent, which then holds its queue too.
    """
    start = turns["first_chunk_s"] - turns["server_prefill_s"]
    sent = turns["send_end_s"].fillna(turns["call_start_s"])
    found = pd.DataFrame(
        {
            "start_s": start.fillna(sent).to_numpy(),
            "end_s": turns["first_chunk_s"].to_numpy(),
            "uncached_tokens": turns["uncached_tokens"].to_numpy(),
            "replica": turns["replica"].astype(object).fillna("").to_numpy(),
            "session_id": turns["session_id"].astype(object).to_numpy(),
        }
    )
    return found[(found["end_s"] > found["start_s"]).to_numpy()]


def interference(measured: Measured) -> Interference | None:
    """For one run; None without recorded gaps. Prefills of all turns count, warm-up included."""
    if measured.run.chunks_path is None:
        return None
    stalls, turns = measured.gaps.stalls, measured.turns
    prefills = prefill_intervals(turns)
    known = prefills[(prefills["uncached_tokens"] >= SIZE_EDGES[0]).to_numpy()]
    replica = turns["replica"].astype(object).fillna("").to_numpy()[stalls.turn.astype(int)]
    by_size, explained = _explained(stalls, replica, known)
    chance = _chance(stalls, replica, known, measured.window.from_s, measured.window.to_s)
    return Interference(
        stalls=len(stalls.length_s),
        stall_s=float(stalls.length_s.sum()),
        explained_s=explained,
        chance_share=None if chance is None else float(chance.mean()),
        chance_high_share=None if chance is None else float(np.quantile(chance, 0.975)),
        by_size=by_size,
        without_token_counts=int(prefills["uncached_tokens"].isna().sum()),
    )


def _explained(
    stalls: Stalls, replica: np.ndarray, prefills: pd.DataFrame
) -> tuple[tuple[SizeShare, ...], float]:
    """Largest offenders first: what they cover is not given to smaller ones again."""
    found: list[SizeShare] = []
    covered_by_larger = 0.0
    tokens = prefills["uncached_tokens"].to_numpy()
    for low, high in reversed(list(pairwise(SIZE_EDGES))):
        covered = _covered_s(stalls.start_s, stalls, replica, _coverages(prefills[tokens >= low]))
        count = int(((tokens >= low) & (tokens < high)).sum())
        found.append(SizeShare(low, high, count, covered - covered_by_larger))
        covered_by_larger = covered
    return tuple(reversed(found)), covered_by_larger


def _coverages(prefills: pd.DataFrame) -> dict[str, Coverage]:
    """By replica."""
    return {
        str(name): Coverage(mine["start_s"].to_numpy(), mine["end_s"].to_numpy())
        for name, mine in prefills.groupby("replica")
    }


def _covered_s(
    starts_s: np.ndarray, stalls: Stalls, replica: np.ndarray, coverages: dict[str, Coverage]
) -> float:
    total = 0.0
    for name, coverage in coverages.items():
        on = replica == name
        from_s = starts_s[on]
        total += float(coverage.between(from_s, from_s + stalls.length_s[on]).sum())
    return total


def _chance(
    stalls: Stalls, replica: np.ndarray, prefills: pd.DataFrame, from_s: float, to_s: float
) -> np.ndarray | None:
    """Explained share after moving all stalls by the same random time, around the window's end."""
    total, span = float(stalls.length_s.sum()), to_s - from_s
    if total <= 0 or span <= 0:
        return None
    rng = np.random.default_rng(0)
    coverages = _coverages(prefills)
    shares = [
        _covered_s(from_s + (stalls.start_s - from_s + shift) % span, stalls, replica, coverages)
        for shift in rng.uniform(0, span, CHANCE_SHIFTS)
    ]
    return np.array(shares) / total


def stall_check(measured: Measured) -> StallCheck | None:
    """Do the server's own gaps confirm the client's? None when the server says nothing of them."""
    histogram = measured.scrape.histogram("itl")
    if histogram is None or measured.run.chunks_path is None:
        return None
    bounds = [b for b in histogram.bounds_s if b >= measured.stall_rule.floor_s]
    server = histogram.count_above(bounds[0]) if bounds and np.isfinite(bounds[0]) else None
    if server is None:
        return None
    client = sum(hist.count_above(bounds[0]) for hist in measured.gaps.raw.values())
    return StallCheck(bounds[0], client, server)
