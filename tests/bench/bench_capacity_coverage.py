"""Prints how often 90 % intervals of a calibration cover what hidden engines really take.

python tests/bench/bench_capacity_coverage.py [--seeds N] [--first-seed N]

For each GPU, depth and kind of hidden engine: calibrations in virtual time, six predictions each.
The kinds "tiles" and "strange" have a step cost that no form of the model has.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tests.unit.capacity.hidden_engines import HIDDEN, calibrated, covered


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--first-seed", type=int, default=1000, metavar="N")
    given = parser.parse_args(argv)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    print("| GPU | depth | hidden engine | roof chosen | covered | worst question | error P95 |")
    print("|---|---|---|---|---|---|---|")
    every: dict[str, list[bool]] = defaultdict(list)
    for gpu in ("A100-40G", "H100-80G"):
        for depth in (32_768, 98_304):
            for kind in HIDDEN:
                _row(gpu, depth, kind, seeds, every)
    for kind, hits in every.items():
        print(f"{kind}: {np.mean(hits):.1%} of {len(hits)} intervals hold the truth")
    return 0


def _row(gpu: str, depth: int, kind: str, seeds: range, every: dict[str, list[bool]]) -> None:
    hits: dict[str, list[bool]] = defaultdict(list)
    errors, roofs = [], 0
    for seed in seeds:
        one = calibrated(gpu, depth, kind, seed)
        roofs += one.form == "roof"
        for name, inside, error in covered(one, seed):
            hits[name].append(inside)
            errors.append(abs(error))
            every[kind].append(inside)
    worst = min(hits, key=lambda name: np.mean(hits[name]))
    share = np.mean([inside for all_ in hits.values() for inside in all_])
    print(
        f"| {gpu} | {depth} | {kind} | {roofs}/{len(seeds)} | {share:.0%} | "
        f"{worst} {np.mean(hits[worst]):.0%} | {np.quantile(errors, 0.95):.1%} |",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
