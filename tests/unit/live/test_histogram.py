"""The histogram against exact percentiles of the same values."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.live.histogram import (
    MAX_KEY,
    RELATIVE_ERROR,
    LogHistogram,
    key_of,
    percentiles_of,
    value_s,
)

QS = (0.5, 0.9, 0.99)
GAPS_US = st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=400)


def filled(values_us: list[int]) -> LogHistogram:
    histogram = LogHistogram()
    histogram.add_us(values_us)
    return histogram


def test_the_stated_error_is_within_one_percent() -> None:
    assert 0 < RELATIVE_ERROR <= 0.01


@given(GAPS_US)
def test_percentiles_are_those_of_the_values_within_the_stated_error(values: list[int]) -> None:
    found = filled(values).percentiles_s(QS)
    for q, value in zip(QS, found, strict=True):
        fewest = {0.5: 1, 0.9: 10, 0.99: 100}[q]
        if len(values) < fewest:
            assert value is None
        else:
            exact = float(np.quantile(np.array(values) / 1e6, q))
            assert value == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-9), abs=0)


@given(GAPS_US, GAPS_US)
def test_two_parts_merged_are_the_whole(first: list[int], second: list[int]) -> None:
    whole, merged = filled(first + second), LogHistogram.sum_of([filled(first), filled(second)])
    assert merged.bins == whole.bins
    assert merged.count == len(first) + len(second)
    assert merged.sum_us == sum(first) + sum(second)
    assert (merged.min_us, merged.max_us) == (min(first + second), max(first + second))


def test_zero_and_the_largest_have_buckets() -> None:
    assert value_s(key_of(0)) == 0.0
    assert filled([0] * 3).percentiles_s([0.5]) == [0.0]
    assert key_of(10**18) == MAX_KEY
    assert value_s(key_of(10 * 86_400 * 10**6)) == pytest.approx(864_000, rel=RELATIVE_ERROR)


def test_buckets_hold_what_their_bounds_say() -> None:
    values = [random.Random(3).randint(1, 10**7) for _ in range(1000)]
    below = 0
    for bound_s, count in filled(values).buckets():
        below += count
        assert below == sum(v <= bound_s * 1e6 * (1 + 1e-12) for v in values)


def test_nothing_has_no_percentile() -> None:
    assert LogHistogram().percentiles_s(QS) == [None, None, None]
    assert percentiles_of({5: 0}, [0.5]) == [None]
