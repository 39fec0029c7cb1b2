"""Pairing, contrasts and their intervals on data whose differences are known."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import planted
import pytest

from analysis.bootstrap import (
    Estimate,
    percentile_estimate,
    percentile_interval,
    ratio_estimate,
    relative_interval,
    session_weights,
    student_t,
    studentised_interval,
    t_factor,
)
from analysis.factors import crossed
from analysis.measured import measure
from analysis.metrics import Arm
from analysis.results import compare_arms
from analysis.statistics import STATISTICS, Effect, contrast, pair

BY_NAME = {s.name: s for s in STATISTICS}
TOOL = ("tool",)


def arm(folder: Path, name: str, ttfts: dict[tuple[str, int], float], **given: object) -> Arm:
    rows = [planted.turn(s, i, ttft=t, turn_class="tool") for (s, i), t in ttfts.items()]
    settings = given.pop("settings", {})
    run = measure(
        planted.write_run(folder / name, rows, arm={"name": name, "settings": settings}, **given)
    )
    return Arm(name, (run,))


def by_session(sessions: int, turns: int, ttft: float, step: float = 0.0) -> dict:
    return {(f"s{s}", i): ttft + step * s for s in range(sessions) for i in range(turns)}


def test_only_turns_that_all_arms_have_are_compared(tmp_path: Path) -> None:
    slow = arm(tmp_path, "slow", {("s0", 0): 1.0, ("s0", 1): 1.0, ("s1", 0): 9.0})
    fast = arm(tmp_path, "fast", {("s0", 0): 2.0, ("s0", 1): 4.0, ("s2", 0): 99.0})
    paired = pair([slow, fast])
    assert (len(paired.session), paired.sessions) == (2, 1)
    found = contrast(
        paired, BY_NAME["ttft_mean"], {"fast": 1, "slow": -1}, "fast", "slow", TOOL, "T2+"
    )
    assert found is not None
    assert (found.base, found.value) == (1.0, pytest.approx(2.0))
    assert found.reason == "1 paired sessions, needs 10"
    assert found.low is None


def test_repeats_of_a_seed_are_matched_in_order_and_share_a_cluster(tmp_path: Path) -> None:
    def runs(name: str, values: list[float]) -> Arm:
        measured = []
        for n, value in enumerate(values):
            rows = [planted.turn("s0", 0, ttft=value, turn_class="tool")]
            folder = planted.write_run(
                tmp_path / f"{name}{n}", rows, arm={"name": name}, wall_start_unix_s=1e9 + n
            )
            measured.append(measure(folder))
        return Arm(name, tuple(reversed(measured)))  # the order given does not matter

    paired = pair([runs("a", [1.0, 2.0]), runs("b", [1.1, 2.2])])
    assert paired.sessions == 1
    assert paired.frames["a"]["ttft_s"].tolist() == [1.0, 2.0]
    assert paired.frames["b"]["ttft_s"].tolist() == [1.1, 2.2]


def test_other_seeds_have_nothing_in_common(tmp_path: Path) -> None:
    one = arm(tmp_path, "one", by_session(3, 2, 1.0), scenario={"seed": 1})
    two = arm(tmp_path, "two", by_session(3, 2, 1.0), scenario={"seed": 2})
    assert compare_arms([one, two], "one").paired_turns == 0


def test_a_constant_difference_has_an_interval_of_no_width(tmp_path: Path) -> None:
    base = arm(tmp_path, "base", by_session(12, 5, 1.0, 0.1))
    other = arm(tmp_path, "other", by_session(12, 5, 1.5, 0.1))
    found = contrast(
        pair([base, other]),
        BY_NAME["ttft_mean"],
        {"other": 1, "base": -1},
        "other",
        "base",
        TOOL,
        "T2+",
    )
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert found.is_clear


def test_a_difference_that_is_not_clear_says_how_large_it_can_be() -> None:
    found = Effect(BY_NAME["ttft_p50"], "T2+", "b", 1.0, 0.1, -0.2, 0.3, 100, 20)
    assert not found.is_clear
    assert found.no_larger_than == 0.3
    assert (
        Effect(BY_NAME["ttft_p50"], "T2+", "b", 1.0, 0.1, None, None, 1, 1, "few").is_clear is False
    )


def four_arms(tmp_path: Path) -> list[Arm]:
    """TTFT 1 s, +4 s without cache, +0.5 s chunked, and +2 s more for chunked without cache."""
    value = {(True, True): 1.5, (True, False): 7.5, (False, True): 1.0, (False, False): 5.0}
    return [
        arm(
            tmp_path,
            f"c{c:d}p{p:d}",
            by_session(12, 3, v, 0.01),
            settings={
                "enable-chunked-prefill": c,
                "enable_prefix_caching": str(p),
                "max_num_batched_tokens": 8192 if c else 131072,
                "num_gpu_blocks": str(1000 + c + 2 * p),  # differs from start to start
            },
        )
        for (c, p), v in value.items()
    ]


def test_the_two_by_two_is_found_in_the_settings(tmp_path: Path) -> None:
    square = crossed(four_arms(tmp_path))
    assert square is not None
    assert square.first.name == "enable_chunked_prefill"
    assert square.first.along == ("max_num_batched_tokens",)
    assert square.second.name == "enable_prefix_caching"
    assert square.second.high_arms == {"c1p1", "c0p1"}


def test_main_effects_simple_effects_and_interaction(tmp_path: Path) -> None:
    comparison = compare_arms(four_arms(tmp_path))
    assert comparison.base == "c1p1"
    found = {e.name: e.value for e in comparison.factorial if e.statistic.name == "ttft_mean"}
    assert found == {
        "enable_chunked_prefill": pytest.approx(1.5),
        "enable_prefix_caching": pytest.approx(-5.0),
        "enable_chunked_prefill with enable_prefix_caching off": pytest.approx(2.5),
        "enable_chunked_prefill with enable_prefix_caching on": pytest.approx(0.5),
        "enable_prefix_caching with enable_chunked_prefill off": pytest.approx(-4.0),
        "enable_prefix_caching with enable_chunked_prefill on": pytest.approx(-6.0),
        "interaction": pytest.approx(-2.0),
    }


def test_arms_that_differ_in_one_thing_only_make_no_square(tmp_path: Path) -> None:
    arms = [
        arm(tmp_path, f"a{n}", by_session(1, 1, 1.0), settings={"max_num_seqs": n})
        for n in range(4)
    ]
    assert crossed(arms) is None
    assert crossed(arms[:2]) is None


def test_estimates_are_the_plain_statistics() -> None:
    rng = np.random.default_rng(5)
    values, session = rng.lognormal(0, 1, 500), np.repeat(np.arange(25), 20)
    weights = session_weights(25)
    assert weights.sum(axis=1).tolist() == [25.0] * len(weights)
    for q in (0.5, 0.9):
        found = percentile_estimate(values, session, weights, q)
        assert found.value == pytest.approx(float(np.quantile(values, q)))
        assert found.center == pytest.approx(found.value, rel=0.1)
    mean = ratio_estimate(values, np.ones(500), session, weights)
    assert mean.value == pytest.approx(float(values.mean()))


def test_more_turns_than_rank_groups_change_a_percentile_by_next_to_nothing() -> None:
    rng = np.random.default_rng(6)
    values, session = rng.lognormal(0, 1, 40_000), np.repeat(np.arange(40), 1000)
    found = percentile_estimate(values, session, session_weights(40, 20), 0.99)
    assert found.center == pytest.approx(found.value, rel=0.01)


def test_an_interval_contains_the_value_itself() -> None:
    off = Estimate(2.0, 1.0, np.array([0.9, 1.0, 1.1]))
    assert percentile_interval([off], [1.0], 2.0, 0.5) == (pytest.approx(0.8), 2.0)
    assert percentile_interval([off], [1.0], 2.0, 0.9)[1] == 2.0


def test_the_ranks_left_out_of_the_draws_do_not_matter() -> None:
    """A percentile of a draw by hand: the sessions' values, repeated as often as drawn."""
    rng = np.random.default_rng(8)
    session = np.repeat(np.arange(30), 50)
    values = np.exp(rng.normal(0, 0.5, 30)[session] + rng.normal(0, 0.5, 1500))
    weights = session_weights(30, 40)
    for q in (0.9, 0.99):
        draws = percentile_estimate(values, session, weights, q).draws
        for drawn, row in zip(draws, weights.astype(int), strict=True):
            by_hand = np.quantile(np.repeat(values, row[session]), q)
            assert drawn == pytest.approx(float(by_hand), rel=1e-9)


def test_the_standard_error_of_a_mean_is_that_of_its_session_sums() -> None:
    """Sessions of one turn each and no skew: Student's interval by hand."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0] * 4)
    session = np.arange(20)
    weights = session_weights(20)
    mean = ratio_estimate(values, np.ones(20), session, weights)
    low, high = studentised_interval([mean], [1.0], weights)
    half = 2.093 * float(values.std(ddof=1)) / np.sqrt(20)
    assert (low + high) / 2 == pytest.approx(3.0, abs=0.1)
    assert half <= (high - low) / 2 < 1.25 * half


def test_a_skewed_population_widens_the_side_it_has_to() -> None:
    """A mean that may have missed a rare large value can be far too low, hardly too high."""
    values = np.append(np.full(19, 1.0) + np.linspace(0, 0.1, 19), 8.0)
    weights = session_weights(20)
    mean = ratio_estimate(values, np.ones(20), np.arange(20), weights)
    low, high = studentised_interval([mean], [1.0], weights)
    assert high - mean.value > 2 * (mean.value - low)


def test_a_ratio_needs_values_above_zero() -> None:
    one, two = Estimate(1.0, 1.0, np.full(3, 1.0)), Estimate(2.0, 2.0, np.array([2.0, 2.1, 1.9]))
    weights = session_weights(10, 3)
    found = relative_interval(two, one, weights, 2.0, 0.5)
    assert found is not None
    assert found[0] < 2.0 < found[1]
    zero = Estimate(0.0, 0.0, np.zeros(3))
    assert relative_interval(two, zero, weights, 2.0, 0.5) is None


def test_a_relative_change_does_not_depend_on_the_unit() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.lognormal(0, 1, 30), session_weights(30)

    def mean(scale: float, shift: np.ndarray) -> object:
        return ratio_estimate(scale * values * shift, np.ones(30), np.arange(30), weights)

    shift = rng.lognormal(0, 0.1, 30)
    in_s = relative_interval(mean(1.0, shift), mean(1.0, np.ones(30)), weights, 2.0, 0.5)
    in_ms = relative_interval(mean(1e3, shift), mean(1e3, np.ones(30)), weights, 2.0, 0.5)
    assert in_s == pytest.approx(in_ms)


@pytest.mark.parametrize(("sessions", "t"), [(10, 2.262), (20, 2.093), (61, 2.000)])
def test_students_t_is_that_of_the_tables(sessions: int, t: float) -> None:
    assert student_t(sessions - 1, 0.95) == pytest.approx(t, abs=0.002)
    assert t_factor(sessions, 0.95) == pytest.approx(t * np.sqrt(sessions / (sessions - 1)), 1e-3)


def test_a_p99_needs_twenty_sessions() -> None:
    assert [s.min_sessions for s in STATISTICS if s.name in ("ttft_p99", "ttft_p90")] == [10, 20]


def coverage_bench() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "coverage_of_intervals.py"
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PERCENTILES = (("ttft_p50", "difference"), ("ttft_p90", "difference"))
MEANS = (
    ("ttft_mean", "difference"),
    ("ttft_mean", "main effect"),
    ("ttft_mean", "interaction"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "size", "experiments", "wanted"),
    [
        ("effect varies", (20, 20), 240, PERCENTILES),
        ("effect varies", (20, 20), 500, MEANS),
        ("usual", (20, 60), 160, (("ttft_p99", "difference"),)),
        ("effect varies", (10, 20), 500, (("ttft_mean", "difference"),)),
    ],
    ids=["percentiles", "means-and-two-by-two", "tail", "ten-sessions"],
)
def test_95_percent_intervals_cover_the_truth_in_93_to_97_percent_of_experiments(
    population: str,
    size: tuple[int, int],
    experiments: int,
    wanted: tuple[tuple[str, str], ...],
) -> None:
    """The share of 240 experiments is itself known to 1.4 points only, that of 500 to 1.0: two
    such standard errors are allowed on either side.

    tests/bench/coverage_of_intervals.py runs more of them, in more populations.
    """
    bench = coverage_bench()
    found = bench.coverage(bench.POPULATIONS[population], experiments, size, wanted, seed=5)
    shares = {(name, kind): (share, n) for name, kind, share, n in found}
    assert {key for key in shares if key[1] != "relative"} == set(wanted)
    for key, (share, n) in shares.items():
        slack = 2 * math.sqrt(0.95 * 0.05 / n)
        assert n > 0.9 * experiments, key
        assert 0.93 - slack <= share <= 0.97 + slack, (key, share)


@pytest.mark.slow
def test_too_few_turns_for_a_p99_give_no_interval() -> None:
    bench = coverage_bench()
    wanted = (("ttft_p99", "difference"),)
    assert list(bench.coverage(bench.POPULATIONS["usual"], 3, (40, 10), wanted)) == []
