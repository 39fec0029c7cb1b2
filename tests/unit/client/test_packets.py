"""The client against a second witness: the packets on loopback."""

import itertools

import pytest

from agentload.clock import realtime_offset_ns
from tests.unit.client.driving import Driver, gaps_s
from tests.unit.client.fake_server import FakeServer, stream
from tests.unit.client.packets import Capture, arrivals_of

pytestmark = pytest.mark.slow

TURNS, TOKENS = 4, 25
STAMP_S = 0.001  # packet and socket are stamped at two places of one kernel


@pytest.mark.parametrize("reader", ["tick", "watcher"])
def test_ttft_and_gaps_are_those_of_the_packets(driver: Driver, reader: str) -> None:
    with FakeServer(lambda request: stream(request, TOKENS, 0.05, 0.012)) as server:
        try:
            with Capture(server.port) as capture:
                results = driver.run(server.url, [{"chars": 200_000}] * TURNS, reader=reader)
        except PermissionError:
            pytest.skip("no right to open a packet socket (needs root or CAP_NET_RAW)")
    assert capture.dropped == 0
    arrivals = arrivals_of(capture.from_server, b'"content":"t')
    sends = [s.at_ns for s in capture.to_server if s.payload.startswith(b"POST ")]
    assert (len(arrivals), len(sends)) == (TURNS * TOKENS, TURNS)
    offset_ns = realtime_offset_ns()
    for turn, result in enumerate(results):
        seen = arrivals[turn * TOKENS : (turn + 1) * TOKENS]
        ttft_s = (result["chunk_ns"][0] - result["send_start_ns"]) / 1e9
        # The first packet leaves within the send call, so it may be later than its start.
        assert ttft_s == pytest.approx((seen[0] - sends[turn]) / 1e9, abs=0.005)
        assert result["chunk_ns"][0] == pytest.approx(seen[0] - offset_ns, abs=STAMP_S * 1e9)
        expected = [(b - a) / 1e9 for a, b in itertools.pairwise(seen)]
        usable = [not merged for merged in result["merged"][1:]]
        for gap, truth, ok in zip(gaps_s(result), expected, usable, strict=True):
            if ok:
                assert gap == pytest.approx(truth, abs=STAMP_S)
        assert sum(usable) >= 0.9 * len(usable)
