"""Kernel stamps on the monotonic clock, and when they are not believed."""

import struct

from agentload.client.stamps import Reads, Stamps, stamp_reads

OFFSET_NS = 1_700_000_000_000_000_000
SEND_NS = 1_000_000_000


def read(user_ns: int, kernel_ns: int | None) -> tuple[int, bytes]:
    if kernel_ns is None:
        return user_ns, b""
    real_ns = kernel_ns + OFFSET_NS
    return user_ns, struct.pack("@qq", real_ns // 10**9, real_ns % 10**9)


def stamp(*reads: tuple[int, bytes], end_offset_ns: int = OFFSET_NS) -> Stamps:
    account = Reads()
    for user_ns, raw in reads:
        account.add(user_ns, raw, 0)
    return stamp_reads(account, SEND_NS, OFFSET_NS, end_offset_ns)


def test_kernel_stamps_are_moved_to_the_monotonic_clock() -> None:
    late = read(SEND_NS + 30_000_000, SEND_NS + 20_000_000)
    assert stamp(late) == Stamps([SEND_NS + 20_000_000], "kernel", False)


def test_one_missing_stamp_makes_all_user_stamps() -> None:
    reads = [read(SEND_NS + 1, SEND_NS), read(SEND_NS + 9, None)]
    assert stamp(*reads) == Stamps([SEND_NS + 1, SEND_NS + 9], "user", False)


def test_a_step_between_the_ends_is_seen() -> None:
    at = read(SEND_NS + 30, SEND_NS + 20)
    assert stamp(at, end_offset_ns=OFFSET_NS + 50_000_000) == Stamps([SEND_NS + 30], "user", True)
    assert not stamp(at, end_offset_ns=OFFSET_NS + 100_000).clock_step


def test_a_step_there_and_back_is_seen_by_impossible_stamps() -> None:
    before_send = read(SEND_NS + 30, SEND_NS - 2_000_000)
    after_read = read(SEND_NS + 30, SEND_NS + 2_000_000)
    assert stamp(before_send) == stamp(after_read) == Stamps([SEND_NS + 30], "user", True)


def test_no_reads() -> None:
    assert stamp() == Stamps([], "user", False)
