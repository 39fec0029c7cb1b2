"""Public failures that need a server to happen (B03, B04, B05, B07), by the real client."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases.sse_case import FOLDER, load, py_bytes
from tests.e2e.client.driving import Driver, gaps_s, seconds
from tests.e2e.client.fake_server import SSE_HEAD, FakeServer, Request, Schedule, stream

pytestmark = pytest.mark.slow

LATE_S = 0.25  # how much later than planned a busy machine may be


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as running:
        yield running


def inputs(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = load(FOLDER / f"{name}.yaml")
    return case["input"], case["expected"]["values"]


def scripted(steps: list[dict[str, Any]]) -> Any:
    """A handler that follows a case's script."""

    def handle(request: Request) -> None:
        step = steps[request.number - 1]
        if step["status"] == 200:
            stream(request, step["tokens"], step["first_token_after_s"], step["gap_s"])
        else:
            Schedule().wait(step["after_s"])
            request.wire.answer(step["status"], b"{}", step.get("headers"))

    return handle


def test_each_attempt_is_a_record(driver: Driver) -> None:
    data, expected = inputs("B03-sdk-retries-hidden-in-latency")
    with FakeServer(scripted(data["server"])) as server:
        results = driver.run(server.url, [{}, {}, {}])
    assert len(server.requests) == expected["records"]
    failed = [r["error_class"] for r in results if r["status"] == "error"]
    assert failed == expected["error_classes"]
    ttft_s = (results[-1]["chunk_ns"][0] - results[-1]["send_start_ns"]) / 1e9
    assert expected["ttft_s_of_success"] <= ttft_s < expected["ttft_s_of_success"] + LATE_S


def test_rate_limits_say_how_long_to_wait(driver: Driver) -> None:
    data, expected = inputs("B04-rate-limit-429")
    with FakeServer(scripted(data["server"])) as server:
        results = driver.run(server.url, [{}, {}, {}])
    limited = [r for r in results if r["error_class"] == "rate_limited"]
    assert len(limited) == expected["rate_limited"]
    assert [r["retry_after_s"] for r in limited] == [2.0, 0.5]
    assert all(r["chunk_ns"] == [] and r["http_status"] == 429 for r in limited)
    assert results[2]["status"] == "success"


def test_the_total_deadline_bounds_a_slow_stream(driver: Driver) -> None:
    """The case at a tenth of its times: every read is in time, the whole is not."""
    data, expected = inputs("B05-read-timeout-is-not-a-deadline")

    def handle(request: Request) -> None:
        schedule = Schedule()
        request.wire.send(SSE_HEAD)
        for segment in data["segments"]:
            schedule.wait(segment["t"] / 10)
            request.wire.chunk(py_bytes(segment["py"]))
        request.wire.end()

    client = data["client"]
    with FakeServer(handle) as server:
        [result] = driver.run(
            server.url,
            between_chunks_timeout_s=client["read_timeout_s"],
            total_timeout_s=client["total_timeout_s"] / 10,
        )
    assert result["error_class"] == expected["error"]
    assert result["status"] == "error"
    assert len(result["chunk_ns"]) == expected["token_events"]
    assert seconds(result, "end_ns") == pytest.approx(expected["e2e_s"] / 10, abs=0.001)
    assert all(gap > 0.04 for gap in gaps_s(result))


def test_idle_connections_are_dropped_before_the_server_drops_them(driver: Driver) -> None:
    """The case at a tenth of its times."""
    data, expected = inputs("B07-keepalive-reuse-race")
    turn_s = data["turn_duration_s"] / 10

    def handle(request: Request) -> None:
        stream(request, 2, turn_s / 2, turn_s / 2)

    with FakeServer(handle, idle_close_s=data["server_keepalive_s"] / 10) as server:
        results = driver.run(
            server.url,
            [{"at_s": start_s / 10} for start_s in data["turn_starts_s"]],
            keepalive_expiry_s=data["client"]["keepalive_expiry_s"] / 10,
        )
    assert server.connections == expected["connections_opened"]
    assert len(server.requests) - server.connections == expected["reused"]
    assert [r["error_class"] for r in results] == [None] * 4
