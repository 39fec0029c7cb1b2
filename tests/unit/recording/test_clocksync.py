"""Clock offsets against round trips made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.recording.clocksync import ClockOffset, clock_identity

MS = 1_000_000
S = 1_000 * MS


def test_the_offset_is_taken_at_the_middle_of_the_round_trip() -> None:
    clock = ClockOffset()
    clock.add(sent_ns=10 * S, other_ns=110 * S + 2 * MS, received_ns=10 * S + 4 * MS)
    assert clock.best(10 * S + 4 * MS) == (100 * S, 2 * MS)


def test_the_shortest_round_trip_wins_and_ages_with_the_drift() -> None:
    clock = ClockOffset()
    clock.add(0, 1 * S, 2 * MS)  # error 1 ms
    clock.add(10 * S, 11 * S + 40 * MS, 10 * S + 80 * MS)  # error 40 ms
    assert clock.best(10 * S + 80 * MS)[0] == 1 * S - 1 * MS
    # 40 s later the first is worth 1 ms + 50 ppm of 50 s = 3.5 ms
    offset_ns, error_ns = clock.best(50 * S + 2 * MS)
    assert (offset_ns, error_ns) == (1 * S - 1 * MS, 3_500_000)


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1, max_size=20),
)
def test_the_true_offset_lies_within_the_error(true_ns: int, ways: list[tuple[int, int]]) -> None:
    clock, now = ClockOffset(), 10**12
    for there, back in ways:
        clock.add(now, now + there + true_ns, now + there + back)
        now += there + back
    offset_ns, error_ns = clock.best(now)
    assert abs(offset_ns - true_ns) <= error_ns + 1


def test_one_clock_has_no_offset_whatever_was_measured() -> None:
    clock = ClockOffset(same_clock=True)
    clock.add(0, 5 * MS, 20 * MS)
    assert clock.known
    assert clock.best(S) == (0, 0)


def test_nothing_is_known_before_the_first_round_trip() -> None:
    clock = ClockOffset()
    assert not clock.known
    with pytest.raises(ValueError, match="no round trip"):
        clock.best(0)
    with pytest.raises(ValueError, match="round trip of -1 ns"):
        clock.add(1, 5, 0)


def test_the_identity_of_this_machine_is_stable() -> None:
    assert clock_identity() == clock_identity()
