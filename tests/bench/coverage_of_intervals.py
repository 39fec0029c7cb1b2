"""Prints how often 95 % intervals cover the truth in simulated paired experiments.

python tests/bench/coverage_of_intervals.py [--experiments N] [--population NAME ...]

Four arms (a 2 x 2 of two settings) share sessions and turns; sessions are of unequal length. The
truth is the difference of the populations' statistics, from two million draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.statistics import STATISTICS, Effect, Paired, contrast

SIZES = ((10, 20), (20, 20), (20, 60), (40, 30), (80, 20))
NAMES = ("ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean")
PAIR = {"b": 1.0, "a": -1.0}
CONTRASTS = {
    "difference": PAIR,
    "main effect": {"a": -0.5, "b": 0.5, "c": -0.5, "d": 0.5},
    "interaction": {"a": 1.0, "b": -1.0, "c": -1.0, "d": 1.0},
}
FACTORS = {"a": 1.0, "b": 0.8, "c": 0.6, "d": 0.5}  # of the level; 0.48 were no interaction
TRUTH_SESSIONS = 400_000
RELATIVE = "relative"

Values = dict[str, np.ndarray]
Population = Callable[[np.random.Generator, np.ndarray, int], Values]


@dataclass(frozen=True, slots=True)
class Spread:
    """Lognormal: standard deviations of the logarithm between sessions, between turns, of each
    measurement, and of a setting's effect between sessions.
    """

    session: float = 0.4
    turn: float = 0.3
    noise: float = 0.3
    effect: float = 0.0

    def __call__(self, rng: np.random.Generator, session: np.ndarray, sessions: int) -> Values:
        n = len(session)
        shared = rng.normal(0, self.session, sessions)[session] + rng.normal(0, self.turn, n)
        return {
            arm: np.exp(shared + self._shift(rng, factor, sessions)[session] + self._noise(rng, n))
            for arm, factor in FACTORS.items()
        }

    def _shift(self, rng: np.random.Generator, factor: float, sessions: int) -> np.ndarray:
        spread = 0.0 if factor == 1.0 else self.effect
        shift: np.ndarray = np.log(factor) + rng.normal(0, spread, sessions)
        return shift

    def _noise(self, rng: np.random.Generator, n: int) -> np.ndarray:
        noise: np.ndarray = rng.normal(0, self.noise, n)
        return noise


def two_humps(rng: np.random.Generator, session: np.ndarray, sessions: int) -> Values:
    """A twentieth of the turns, more in some sessions, takes eight times as long: evictions.

    The settings make these less slow (4.8 times in arm b), and leave the others as they are.
    """
    level = rng.normal(0, 0.3, sessions)[session]
    lost = rng.random(len(session)) < 0.05 * rng.gamma(2, 0.5, sessions)[session]
    return {
        arm: np.exp(level + rng.normal(0, 0.25, len(session))) * np.where(lost, slow, 1.0)
        for arm, slow in zip(FACTORS, (8.0, 4.8, 4.0, 3.0), strict=True)
    }


def gammas(rng: np.random.Generator, session: np.ndarray, sessions: int) -> Values:
    """Waiting times; the arms differ in their spread too."""
    level = rng.gamma(6, 1 / 6, sessions)[session]
    shapes = zip(FACTORS.items(), (4.0, 3.0, 2.5, 2.0), strict=True)
    return {
        arm: factor * level * rng.gamma(shape, 1 / shape, len(session))
        for (arm, factor), shape in shapes
    }


POPULATIONS: dict[str, Population] = {
    "usual": Spread(),
    "even sessions": Spread(session=0.0),
    "noisy turns": Spread(session=0.3, turn=0.2, noise=0.8),
    "effect varies": Spread(effect=0.3),
    "gamma": gammas,
    "two humps": two_humps,
    "unequal sessions": Spread(session=0.8),
}


def experiment(
    rng: np.random.Generator, population: Population, sessions: int, turns: int
) -> Paired:
    length = rng.integers(max(turns // 2, 1), turns * 3 // 2 + 1, sessions)
    session = np.repeat(np.arange(sessions), length)
    frames = {
        arm: pd.DataFrame({"ttft_s": values, "turn_class": "tool", "counted": True})
        for arm, values in population(rng, session, sessions).items()
    }
    return Paired(frames, session, sessions)


def truth(population: Population) -> dict[tuple[str, str], float]:
    """By statistic and contrast; `relative` is b / a."""
    session = np.repeat(np.arange(TRUTH_SESSIONS), 5)
    values = population(np.random.default_rng(0), session, TRUTH_SESSIONS)
    found: dict[tuple[str, str], float] = {}
    for s in STATISTICS:
        if s.name in NAMES:
            mean = s.kind == "mean"
            of = {a: float(v.mean() if mean else np.quantile(v, s.q)) for a, v in values.items()}
            for name, factors in CONTRASTS.items():
                found[s.name, name] = sum(f * of[arm] for arm, f in factors.items())
            found[s.name, RELATIVE] = of["b"] / of["a"]
    return found


def covers(effect: Effect, name: str, true: dict[tuple[str, str], float]) -> dict[str, bool]:
    """Whether the interval, and where there is one the relative interval, contains the truth."""
    statistic = effect.statistic.name
    found = {}
    if effect.low is not None and effect.high is not None:
        found[name] = effect.low <= true[statistic, name] <= effect.high
    if effect.ratio is not None:
        found[RELATIVE] = effect.ratio[0] <= true[statistic, RELATIVE] <= effect.ratio[1]
    return found


def coverage(
    population: Population,
    experiments: int,
    size: tuple[int, int],
    wanted: tuple[tuple[str, str], ...],
    seed: int = 1,
) -> Iterator[tuple[str, str, float, int]]:
    """(statistic, contrast, share of intervals that cover the truth, number of intervals)."""
    rng, true = np.random.default_rng(seed), truth(population)
    statistics = {s.name: s for s in STATISTICS}
    hits: dict[tuple[str, str], list[bool]] = {}
    for _ in range(experiments):
        paired = experiment(rng, population, *size)
        for name, which in wanted:
            factors = CONTRASTS[which]
            found = contrast(paired, statistics[name], factors, which, "a", ("tool",), "T2+")
            if found is not None:
                for kind, hit in covers(found, which, true).items():
                    hits.setdefault((name, kind), []).append(hit)
    for (name, kind), covered in hits.items():
        yield name, kind, float(np.mean(covered)), len(covered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=500, metavar="N", help="of each size")
    parser.add_argument("--population", choices=POPULATIONS, action="append")
    given = parser.parse_args()
    experiments, chosen = given.experiments, given.population or list(POPULATIONS)
    print(f"{'population':17} {'sessions x turns':16} {'statistic':10} {'':12} {'covered':>8}")
    wanted = tuple((name, which) for name in NAMES for which in CONTRASTS)
    for label in chosen:
        for sessions, turns in SIZES:
            size = f"{sessions} x {turns}"
            found = coverage(POPULATIONS[label], experiments, (sessions, turns), wanted)
            for name, kind, share, n in found:
                print(f"{label:17} {size:16} {name:10} {kind:12} {share:8.1%} of {n}", flush=True)


if __name__ == "__main__":
    main()
