"""Prints how often 95 % intervals cover the truth in simulated paired experiments.

python tests/bench/coverage_of_intervals.py [EXPERIMENTS]

Turns of one session share an effect, both arms share sessions and turns, values are lognormal; the
truth is the difference of the two populations' statistics, from four million draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.statistics import STATISTICS, Paired, contrast

FACTOR = 0.8
SESSION_SPREAD, TURN_SPREAD, NOISE = 0.4, 0.3, 0.3
SIZES = ((10, 12), (20, 20), (40, 40))
NAMES = ("ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean")


def experiment(rng: np.random.Generator, sessions: int, turns: int) -> Paired:
    """Two arms, `b` being `FACTOR` times `a`, with the same sessions of unequal length."""
    length = rng.integers(max(turns // 2, 1), turns * 3 // 2, sessions)
    session = np.repeat(np.arange(sessions), length)
    shared = rng.normal(0, SESSION_SPREAD, sessions)[session]
    shared += rng.normal(0, TURN_SPREAD, len(session))
    values = {
        arm: np.exp(shared + shift + rng.normal(0, NOISE, len(session)))
        for arm, shift in (("a", 0.0), ("b", np.log(FACTOR)))
    }
    frames = {
        arm: pd.DataFrame({"ttft_s": v, "turn_class": "tool", "counted": True})
        for arm, v in values.items()
    }
    return Paired(frames, session, sessions)


def truth() -> dict[str, float]:
    spread = np.sqrt(SESSION_SPREAD**2 + TURN_SPREAD**2 + NOISE**2)
    population = np.exp(np.random.default_rng(0).normal(0, spread, 4_000_000))
    base = {
        "ttft_p50": np.quantile(population, 0.5),
        "ttft_p90": np.quantile(population, 0.9),
        "ttft_p99": np.quantile(population, 0.99),
        "ttft_mean": population.mean(),
    }
    return {name: float(value) * (FACTOR - 1) for name, value in base.items()}


def coverage(
    experiments: int, sessions: int, turns: int, names: tuple[str, ...] = NAMES, seed: int = 1
) -> Iterator[tuple[str, float, int]]:
    """(statistic, share of intervals that cover the truth, number of intervals)."""
    rng, true = np.random.default_rng(seed), truth()
    wanted = [s for s in STATISTICS if s.name in names]
    hits: dict[str, list[bool]] = {s.name: [] for s in wanted}
    for _ in range(experiments):
        paired = experiment(rng, sessions, turns)
        for s in wanted:
            found = contrast(paired, s, {"b": 1.0, "a": -1.0}, "b", "a", ("tool",), "T2+")
            if found is not None and found.low is not None and found.high is not None:
                hits[s.name].append(found.low <= true[s.name] <= found.high)
    for name, covered in hits.items():
        if covered:
            yield name, float(np.mean(covered)), len(covered)


def main() -> None:
    experiments = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{'sessions':>8} {'turns each':>10}  {'statistic':12} {'covered':>8} {'of':>6}")
    for sessions, turns in SIZES:
        for name, share, n in coverage(experiments, sessions, turns):
            print(f"{sessions:8} {turns:10}  {name:12} {share:8.1%} {n:6}")


if __name__ == "__main__":
    main()
