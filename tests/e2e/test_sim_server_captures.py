"""The same requests to the embedded server and, earlier, to a real vLLM 0.32: the same answers.

Compared are status, headers in their order, and the fields of bodies and events in their order with
the kind of their values. Not compared: the values, the number of token events in a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sim_process import Sim, Stream, reads

pytestmark = pytest.mark.slow

CAPTURES = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0" / "captures"
KEY_FLAGS = (
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-per-request-metrics",
    *("--reasoning-parser", "deepseek_r1"),
    *("--api-key", "test-key-1"),
)
PROMPTS = {
    "<100 token ids>": list(range(1000, 1100)),
    "<40,000 token ids>": list(range(40_000)),
}
# A bias on the end token decides that answer, which the simulator has no tokens to put it on.
# `completions-stream-cached` is recorded without the stream options it was sent with.
# `messages-stream` is another API. The others of these need a server in a certain state.
NOT_HERE = {
    "chat-stream-stop",
    "completions-stream-cached",
    "messages-stream",
    "completions-stream-aborted",
    "completions-stream-keepalive",
    "error-inside-stream",
    "error-queue-full",
    "load-busy",
}
WITH_KEY = sorted(p.stem for p in CAPTURES.glob("*.jsonl") if p.stem not in NOT_HERE)


def capture(name: str) -> tuple[dict[str, Any], Stream]:
    first, *rest = (CAPTURES / f"{name}.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in rest]
    stream = Stream([(round(one["t"] * 1e9), one["bytes"].encode("latin-1")) for one in recorded])
    return json.loads(first)["request"], stream


def shape(value: Any) -> Any:
    """Kinds instead of values; the order of fields is kept, a list is the kinds in it."""
    if isinstance(value, dict) and "top_logprobs" in value:
        first = value["top_logprobs"][0]
        if "logprob" not in first:  # the keys are tokens: values, not fields
            value = {**value, "top_logprobs": [list(first.values())]}
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return ["list", *(kind for kind, _ in groupby(shape(inner) for inner in value))]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else type(value).__name__


def event_shapes(stream: Stream) -> list[Any]:
    shapes = [one if one == "[DONE]" else shape(json.loads(one)) for one in stream.data]
    return [kind for kind, _ in groupby(shapes)]


def send(sim: Sim, request: dict[str, Any]) -> Stream:
    body = request["body"]
    if isinstance(body, dict) and isinstance(body.get("prompt"), str):
        body = {**body, "prompt": PROMPTS.get(body["prompt"], body["prompt"])}
    data = (
        body.encode()
        if isinstance(body, str)
        else b""
        if body is None
        else json.dumps(body).encode()
    )
    with sim.open(request["path"], data, request["headers"], request["method"]) as connection:
        return Stream(list(reads(connection)))


def assert_alike(ours: Stream, real: Stream) -> None:
    assert ours.raw.split(b"\r\n")[0] == real.raw.split(b"\r\n")[0]
    assert ours.header_names == real.header_names
    if "transfer-encoding" in real.header_names:
        assert event_shapes(ours) == event_shapes(real)
        return
    our_body, real_body = (one.raw.partition(b"\r\n\r\n")[2] for one in (ours, real))
    assert bool(our_body) == bool(real_body)
    if real_body:
        assert shape(json.loads(our_body)) == shape(json.loads(real_body))


@pytest.fixture(scope="module")
def keyed() -> Iterator[Sim]:
    with Sim(*KEY_FLAGS) as sim:
        yield sim


@pytest.mark.parametrize("name", WITH_KEY)
def test_same_request_same_answer(keyed: Sim, name: str) -> None:
    request, real = capture(name)
    assert_alike(send(keyed, request), real)


@pytest.mark.parametrize("name", [n for n in WITH_KEY if n.startswith("error-")])
def test_refusals_are_told_in_the_same_words(keyed: Sim, name: str) -> None:
    request, real = capture(name)
    ours = send(keyed, request)
    assert ours.raw.partition(b"\r\n\r\n")[2] == real.raw.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("name", ["chat-stream-token-ids", "completions-stream-token-prompt"])
def test_each_event_is_a_chunk_of_http(keyed: Sim, name: str) -> None:
    request, real = capture(name)
    for stream in (send(keyed, request), real):
        *events, end = stream.http_chunks
        assert end == b""
        assert all(one.startswith(b"data: ") for one in events)
        assert all(one.endswith(b"\n\n") and one.count(b"\n") == 2 for one in events)
