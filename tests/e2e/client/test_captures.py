"""Exchanges recorded from a real vLLM 0.32.0, replayed byte for byte with their timing."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client.driving import Driver
from tests.e2e.client.fake_server import FakeServer, Request, Schedule

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "goldens" / "vllm-0.32.0" / "captures"
SLACK_S = 0.02  # a busy machine may run the replaying thread this late
LONGEST_PAUSE_S = 0.3  # two captures waited 8 s and 25 s for their first token


def reads_of(name: str) -> list[tuple[float, bytes]]:
    """(seconds since the first was due, bytes) of each read of the recording."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    reads = [json.loads(line) for line in lines]
    starts = [0.0, *(read["t"] for read in reads)]
    pauses = [
        min(read["t"] - before, LONGEST_PAUSE_S)
        for read, before in zip(reads, starts, strict=False)
    ]
    data = [read["bytes"].encode("latin-1") for read in reads]
    return list(zip(accumulate(pauses), data, strict=True))


def replayed(driver: Driver, name: str) -> tuple[dict[str, Any], list[float]]:
    """The client's result, and when each read was sent (monotonic seconds)."""
    sent_s: list[float] = []

    def handle(request: Request) -> None:
        schedule = Schedule()
        for at_s, data in reads_of(name):
            sent_s.append(schedule.wait(at_s))
            request.wire.send(data)
        request.wire.close()  # `connection: close` in every recording

    with FakeServer(handle) as server:
        [result] = driver.run(server.url)
    return result, sent_s


# Counted by hand in the recordings: error class, number of token events by read, tokens by the
# last usage (prompt, cached, output) or None, and the whole text with the reasoning.
Counts = tuple[int | None, int | None, int | None]
STREAMS: list[tuple[str, str | None, dict[int, int], Counts, str]] = [
    ("chat-stream-plain", None, {2: 3}, (None, None, 3), "antantantant"),
    ("chat-stream-usage", None, {0: 7}, (9, 0, 8), "ant" * 8),
    ("chat-stream-token-ids", None, {0: 4}, (9, 0, 4), "ant" * 4),
    ("chat-stream-logprobs", None, {2: 1, 3: 1}, (9, 0, 3), "ant" * 3),
    ("chat-stream-stop", "empty_response", {}, (9, 0, 1), ""),
    ("completions-stream-cached", None, {1: 2}, (1000, 896, 2), "unsupported" * 2),
    ("completions-stream-keepalive", None, {8: 1, 9: 1}, (40000, 0, 2), " pip pip"),
    ("completions-stream-logprobs", None, {0: 3}, (None, None, 3), "Address" * 3),
    ("completions-stream-token-prompt", None, {1: 4}, (12, 0, 4), "bool" * 4),
    ("completions-stream-utf8", "empty_response", {}, (None, None, None), ""),
    ("completions-stream-aborted", "stream_cut", {1: 4, 2: 8}, (None, None, 12), " OpenTk" * 6),
    ("error-inside-stream", "stream_error_event", {}, (None, None, None), ""),
]


@pytest.mark.parametrize(
    ("name", "error_class", "tokens_by_read", "counts", "text"), STREAMS, ids=lambda v: str(v)[:24]
)
def test_a_recorded_stream(
    driver: Driver,
    name: str,
    error_class: str | None,
    tokens_by_read: dict[int, int],
    counts: Counts,
    text: str,
) -> None:
    result, sent_s = replayed(driver, name)
    assert result["error_class"] == error_class
    assert (result["prompt_tokens"], result["cached_tokens"], result["output_tokens"]) == counts
    assert result["reasoning_text"] + result["text"] == text
    expected_s = [sent_s[read] for read, events in tokens_by_read.items() for _ in range(events)]
    got_s = [stamp / 1e9 for stamp in result["chunk_ns"]]
    assert got_s == pytest.approx(expected_s, abs=SLACK_S)


def test_reasoning_turns_into_text(driver: Driver) -> None:
    result, sent_s = replayed(driver, "chat-stream-reasoning")
    assert len(result["chunk_ns"]) == 23  # the 24th token, </think>, makes no chunk
    assert (result["output_tokens"], result["reasoning_tokens"]) == (24, None)
    assert result["reasoning_text"].startswith("idle tzinfo")
    assert result["chunk_ns"][0] < result["first_output_ns"]
    assert result["chunk_ns"][-1] / 1e9 == pytest.approx(sent_s[-1], abs=SLACK_S)


def test_running_counts_and_server_times(driver: Driver) -> None:
    result, _ = replayed(driver, "chat-stream-usage")
    assert result["chunk_tokens"] == [1, 2, 1, 1, 1, 1, 1]
    assert result["merged"] == [False] + [True] * 6  # all came in one read
    assert result["server_times"] == pytest.approx(
        {"queue_s": 0.0000336, "prefill_s": 0.0092625, "decode_s": 0.0225903}, abs=1e-6
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat-nonstream", "not_a_stream"),
        ("error-key", "auth"),
        ("error-nokey", "auth"),
        ("error-model", "model_not_found"),
        ("error-route", "http_404"),
        ("error-method", "http_405"),
        ("error-too-long", "context_overflow"),
        ("error-too-long-with-output", "context_overflow"),
        ("error-json", "http_400"),
        ("error-missing-field", "http_400"),
        ("error-param", "http_400"),
        ("error-queue-full", "http_503"),
        ("error-token-out-of-range", "http_400"),
    ],
)
def test_recorded_errors(driver: Driver, name: str, expected: str) -> None:
    result, _ = replayed(driver, name)
    assert result["error_class"] == expected
    assert result["chunk_ns"] == []
