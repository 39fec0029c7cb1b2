"""The per-turn formulas against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload import turn_metrics as tm


def test_latencies_are_differences_of_instants_and_unknown_stays_unknown() -> None:
    assert tm.ttft_s(1.0, 1.5) == 0.5
    assert tm.ttfo_s(1.0, 3.0) == 2.0
    assert tm.e2e_s(1.0, 9.0) == 8.0
    assert tm.lag_s(2.0, 2.25) == 0.25
    assert tm.ttft_s(None, 1.5) is None
    assert tm.ttft_s(1.0, None) is None


def test_tpot_leaves_the_first_token_out() -> None:
    assert tm.tpot_s(2.0, 3.0, 101) == pytest.approx(0.01)
    assert tm.tpot_s(2.0, 2.0, 1) is None
    assert tm.tpot_s(2.0, 3.0, None) is None
    assert tm.tpot_s(2.0, 2.0, 30) is None  # one chunk of 30 tokens


def test_frontend_is_the_rest_of_ttft_and_may_be_negative() -> None:
    assert tm.frontend_s(2.0, 0.1, 0.5, 1.1) == pytest.approx(0.3)
    assert tm.frontend_s(1.0, 0.1, 0.5, 0.6) == pytest.approx(-0.2)
    assert tm.frontend_s(2.0, 0.1, None, 1.1) is None


def test_percentile_interpolates_between_the_nearest_ranks() -> None:
    eight = [7.8, 9.1, 12.0, 20.5, 23.2, 25.0, 31.3, 39.7]
    assert tm.percentile(eight, 0.5) == pytest.approx(21.85)
    assert tm.percentile(list(reversed(eight)), 0.95) == pytest.approx(36.76)
    assert tm.percentile([1.25], 0.99) == 1.25
    assert tm.percentile([], 0.5) is None
    with pytest.raises(ValueError, match="q = 95"):
        tm.percentile(eight, 95)


@pytest.mark.parametrize(
    ("q", "fewest", "comfortable"),
    [(0.0, 1, 10), (0.5, 1, 20), (0.75, 4, 40), (0.9, 10, 100), (0.95, 20, 200), (0.99, 100, 1000)],
)
def test_a_percentile_needs_samples_beyond_it(q: float, fewest: int, comfortable: int) -> None:
    assert tm.min_samples(q) == fewest
    assert tm.comfortable_samples(q) == comfortable
    assert tm.supported_percentile([1.0] * fewest, q) == 1.0
    assert tm.supported_percentile([1.0] * (fewest - 1), q) is None


@given(
    st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=50),
    st.floats(0, 1),
)
def test_a_percentile_is_never_outside_the_data(values: list[float], q: float) -> None:
    found = tm.percentile(values, q)
    assert found is not None
    assert min(values) <= found <= max(values) or math.isclose(found, max(values))


def test_marked_gaps_are_left_out() -> None:
    assert tm.usable_gaps_s([20_000, 30, 5_000_000], ".ml") == [0.02]
    assert tm.usable_gaps_s([20_000, 30]) == [0.02, 0.00003]
    with pytest.raises(ValueError, match="2 gap marks for 1 gaps"):
        tm.usable_gaps_s([1], "..")


def test_jitter_is_p99_minus_p50_of_enough_gaps() -> None:
    gaps = [0.02] * 99 + [0.5, 0.5]  # P99 sits exactly on rank 99 of 0..100
    assert tm.jitter_s(gaps) == pytest.approx(0.48)
    assert tm.jitter_s([0.02] * 19) is None


def test_a_stall_is_far_above_the_median_and_above_the_floor() -> None:
    assert tm.stalls_s([0.02, 0.02, 0.02, 0.3, 0.25]) == [0.3]
    assert tm.stalls_s([0.1, 0.1, 0.1, 0.49, 0.51]) == [0.51]
    assert tm.stalls_s([0.02, 5.0]) is None
    assert tm.stalls_s([0.01, 0.01, 0.2], tm.StallRule(5.0, 0.1)) == [0.2]


def test_gap_figures_without_gaps_are_unknown_not_zero() -> None:
    assert tm.gap_figures([]) == tm.GapFigures(None, None, None, None, None, None)
    few = tm.gap_figures([0.02, 0.04, 1.0])
    assert (few.itl_p50_s, few.itl_p99_s, few.itl_max_s) == (0.04, None, 1.0)
    assert (few.stall_count, few.stall_s) == (1, 1.0)
