"""The same users take the same sessions on any number of workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.swarm.numbering import (
    LATE_BLOCK,
    SESSION_STRIDE,
    Seats,
    dispatch_ranks,
    is_client_id,
    rank_of,
)


def dealt(users: int, workers: int) -> list[int]:
    """The numbers users get when Locust deals them out one by one, round the workers."""
    seats = [Seats(rank, workers) for rank in range(workers)]
    return [seats[k % workers].take() for k in range(users)]


@given(st.integers(0, 200), st.integers(1, 12))
def test_the_set_of_users_does_not_depend_on_the_workers(users: int, workers: int) -> None:
    assert dealt(users, workers) == list(range(users))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_the_set_of_sessions_does_not_either(users: int, workers: int, rounds: int) -> None:
    seats = [Seats(rank, workers) for rank in range(workers)]
    taken = {
        (user, nth): seats[user % workers].next_session(user)
        for user in dealt(users, workers)
        for nth in range(rounds)
    }
    assert taken == {
        (user, nth): user + nth * SESSION_STRIDE for user in range(users) for nth in range(rounds)
    }
    assert len(set(taken.values())) == users * rounds


def test_a_seat_that_is_free_is_taken_again_and_goes_on_with_its_sessions() -> None:
    seats = Seats(1, 3)
    users = [seats.take() for _ in range(3)]
    assert users == [1, 4, 7]
    assert seats.next_session(4) == 4
    seats.leave(7)
    seats.leave(4)
    assert seats.take() == 4
    assert seats.next_session(4) == 4 + SESSION_STRIDE
    assert [seats.take(), seats.take()] == [7, 10]


def test_workers_that_join_late_never_share_a_user_with_the_others() -> None:
    ranks = {"a": 0, "b": 1}
    assert rank_of("c", ranks) == 2
    late, later = Seats(2, 2), Seats(3, 2)
    numbers = [late.take(), late.take(), later.take()]
    assert numbers == [LATE_BLOCK, LATE_BLOCK + 1, 2 * LATE_BLOCK]


def test_ranks_go_round_the_hosts_as_locusts_dispatcher_does() -> None:
    ids = ["h2_a", "h1_c", "h1_a", "h3_b", "h1_b"]
    ranks = dispatch_ranks(ids)
    # first worker of each host, hosts by name; then second ones, and so on
    assert sorted(ids, key=lambda i: ranks[i]) == ["h1_a", "h2_a", "h3_b", "h1_b", "h1_c"]


@given(st.integers(0, 500), st.integers(1, 9))
def test_a_start_that_all_workers_know_of_belongs_to_one(index: int, workers: int) -> None:
    owners = [rank for rank in range(workers + 2) if Seats(rank, workers).owns(index)]
    assert owners == [index % workers]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 30))
def test_with_their_number_as_stride_users_leave_no_session_out(
    users: int, workers: int, rounds: int
) -> None:
    seats = [Seats(rank, workers, users) for rank in range(workers)]
    taken = [
        seats[user % workers].next_session(user)
        for user in dealt(users, workers)
        for _ in range(rounds)
    ]
    assert sorted(taken) == list(range(users * rounds))


@pytest.mark.parametrize(
    ("client_id", "is_one"),
    [
        ("worker-0_0123456789abcdef0123456789abcdef", True),
        ("a_host.example_0123456789abcdef0123456789abcdef", True),
        ("worker-0_0123456789abcdef", False),
        ("../../x_0123456789abcdef0123456789abcdef", False),
        ("..", False),
        ("a/b_0123456789abcdef0123456789abcdef", False),
        ("_0123456789abcdef0123456789abcdef", False),
        ("w_0123456789abcdef0123456789abcdef\n", False),
        ("", False),
    ],
)
def test_only_what_locust_makes_is_the_id_of_a_worker(client_id: str, is_one: bool) -> None:
    """Folders are named after it."""
    assert is_client_id(client_id) == is_one
