"""Which limit stops a request, and when."""

import pytest

from agentload.client.deadlines import Deadlines

LIMITS = Deadlines(
    connect_s=1, first_token_s=10, between_chunks_s=2, total_s=30, cancel_after_first_token_s=None
)


@pytest.mark.parametrize(
    ("first_token_s", "last_read_s", "expected"),
    [
        (None, 0, (10, "timeout_first_token")),
        (None, 9, (10, "timeout_first_token")),  # comments do not move it
        (5, 7, (9, "timeout_read")),
        (5, 29, (30, "timeout_total")),
    ],
)
def test_next_due(first_token_s: int | None, last_read_s: int, expected: tuple[int, str]) -> None:
    first_ns = None if first_token_s is None else first_token_s * 10**9
    due_ns, error_class = LIMITS.next_due(0, first_ns, last_read_s * 10**9)
    assert (due_ns / 10**9, error_class) == expected


def test_a_human_interrupts_after_the_first_token() -> None:
    limits = Deadlines(1, 10, 2, 30, cancel_after_first_token_s=0.5)
    assert limits.next_due(0, None, 0)[1] == "timeout_first_token"
    assert limits.next_due(0, 4 * 10**9, 4 * 10**9) == (4_500_000_000, "aborted_by_user")
