"""The client against a second witness: the packets on loopback."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest

from agentload.clock import realtime_offset_ns
from tests import needs
from tests.e2e.client.driving import Driver, gaps_s
from tests.e2e.client.fake_server import FakeServer, stream
from tests.e2e.client.packets import Capture, HttpExchange, exchanges
from tests.e2e.locust_process import Bench
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

TURNS, TOKENS = 4, 25
STAMP_S = 0.001  # packet and socket are stamped at two places of one kernel


@contextmanager
def captured(port: int) -> Iterator[Capture]:
    """A capture from which no packet was lost; skipped where that is not allowed (never in CI)."""
    if not sys.platform.startswith("linux"):
        needs.skip("packet sockets are Linux's")
    capture = Capture(port)
    try:
        capture.__enter__()
    except PermissionError:
        needs.skip("no right to open a packet socket (needs root or CAP_NET_RAW)")
    try:
        yield capture
    finally:
        capture.__exit__(None, None, None)
    assert capture.dropped == 0


@pytest.mark.parametrize("reader", ["tick", "watcher"])
def test_ttft_and_gaps_are_those_of_the_packets(driver: Driver, reader: str) -> None:
    server = FakeServer(lambda request: stream(request, TOKENS, 0.05, 0.012))
    with server, captured(server.port) as capture:
        results = driver.run(server.url, [{"chars": 200_000}] * TURNS, reader=reader)
    truth = exchanges(capture)
    assert len(truth) == TURNS
    offset_ns = realtime_offset_ns()
    errors_s: list[float] = []
    for seen, result in zip(truth, results, strict=True):
        tokens_ns = seen.tokens_ns()
        assert len(tokens_ns) == TOKENS
        ttft_s = (result["chunk_ns"][0] - result["send_start_ns"]) / 1e9
        # The first packet leaves within the send call, so it may be later than its start.
        true_ttft_s = (tokens_ns[0] - seen.first_request_byte_ns) / 1e9
        assert -STAMP_S < ttft_s - true_ttft_s < 0.01
        errors_s.append(abs(result["chunk_ns"][0] - (tokens_ns[0] - offset_ns)) / 1e9)
        usable = [not merged for merged in result["merged"][1:]]
        errors_s += [
            abs(gap - truth_s)
            for gap, truth_s, ok in zip(gaps_s(result), gaps_of(tokens_ns), usable, strict=True)
            if ok
        ]
    check_errors(errors_s)


def check_errors(errors_s: list[float]) -> None:
    """Between the two places of the kernel that stamp, a busy core may do something else."""
    assert len(errors_s) > 50
    assert median(errors_s) < STAMP_S / 10
    assert sum(error < STAMP_S for error in errors_s) >= 0.98 * len(errors_s)


def gaps_of(at_ns: list[int]) -> list[float]:
    return [(b - a) / 1e9 for a, b in itertools.pairwise(at_ns)]


def test_a_run_through_locust_says_what_the_packets_say(bench: Bench, target: Sim) -> None:
    """`turns.csv` and `chunks.csv` against the wire, turn by turn and gap by gap."""
    with captured(target.port) as capture:
        locust = bench.owner("--headless", "-u", "4", "-r", "4", "-t", "5s")
        assert locust.wait() == 0, locust.output
    folder = bench.folder()
    rows = {row["request_id"]: row for row in folder.rows() if row["status"] == "success"}
    chunks = {row["request_id"]: row for row in folder.rows("chunks.csv")}
    seen = {
        one.request_headers["x-request-id"]: one
        for one in exchanges(capture)
        if one.path == "/v1/chat/completions" and "x-request-id" in one.request_headers
    }
    assert len(rows) > 15
    assert set(rows) <= set(seen)
    check_first_tokens(rows, seen)
    errors_s: list[float] = []
    for request_id, row in rows.items():
        true_s = gaps_of(seen[request_id].tokens_ns())
        assert len(true_s) == int(row["output_chunks"]) - 1
        said_us = list(map(int, chunks[request_id]["gaps_us"].split()))
        marks = chunks[request_id]["gap_marks"] or "." * len(true_s)
        assert row["stamp_source"] == "kernel"
        errors_s += [
            abs(said / 1e6 - truth)
            for said, truth, mark in zip(said_us, true_s, marks, strict=True)
            if mark == "."
        ]
    check_errors(errors_s)


def check_first_tokens(rows: dict[str, dict[str, str]], seen: dict[str, HttpExchange]) -> None:
    """TTFT from the start of sending, and what is left of it when all is sent."""
    from_start_s, from_end_s = [], []
    for request_id, row in rows.items():
        one = seen[request_id]
        first_ns = one.tokens_ns()[0]
        true_s = (first_ns - one.first_request_byte_ns) / 1e9
        from_start_s.append(float(row["ttft_s"]) - true_s)
        after_sending_s = float(row["first_chunk_s"]) - float(row["send_end_s"])
        from_end_s.append(after_sending_s - (first_ns - one.last_request_byte_ns) / 1e9)
    # Sending starts before its first packet. It ends when the kernel has taken all of it, which may
    # then wait for room at the receiver.
    assert min(from_start_s) > -STAMP_S
    assert median(from_start_s) < 0.002
    assert median(map(abs, from_end_s)) < 0.002
