"""What the real server does on its own: the facts that the other tests of this folder rest on."""

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.vllm.arms import MAX_MODEL_LEN, Arm
from tests.vllm.page import Delta, Page
from tests.vllm.server import MODEL, RealServer

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

BLOCK_TOKENS = 128  # vLLM's default on a CPU
OUTPUT_TOKENS = 20


def streamed_events(server: RealServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one streamed chat completion, read with the standard library alone."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    try:
        payload = json.dumps({"model": MODEL, "stream": True, **body})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", payload, headers)
        answer = connection.getresponse()
        assert answer.status == 200
        lines = answer.read().decode().splitlines()
    finally:
        connection.close()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(event) for event in data[:-1]]


def test_the_server_says_what_the_arm_asked_for(server: RealServer, arm: Arm) -> None:
    assert json.loads(server.get("/version")) == {"version": "0.32.0"}
    (model,) = json.loads(server.get("/v1/models"))["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, MAX_MODEL_LEN)
    cache = Page.parse(server.get("/metrics")).labels("cache_config_info")
    assert cache["block_size"] == str(BLOCK_TOKENS)
    assert cache["enable_prefix_caching"] == str(arm.prefix_caching)
    # /metrics has no word about chunked prefill; the start log is the only source.
    assert f"enable_chunked_prefill={arm.chunked_prefill}" in server.log.read_text()


def test_a_repeated_prompt_hits_whole_blocks_only_with_prefix_caching(
    server: RealServer, arm: Arm
) -> None:
    prompt = "".join(f"line {number} of a file\n" for number in range(100))
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    before = Page.parse(server.get("/metrics"))
    first, second = (streamed_events(server, body)[-1] for _ in range(2))
    counted = Delta(before, Page.parse(server.get("/metrics")))

    prompt_tokens = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens"] == prompt_tokens > 2 * BLOCK_TOKENS
    whole_blocks = (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS  # the last token is computed
    hits = whole_blocks if arm.prefix_caching else 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == hits
    assert counted.total("prompt_tokens_total") == 2 * prompt_tokens
    assert counted.total("generation_tokens_total") == 2 * OUTPUT_TOKENS
    assert counted.total("request_success_total", finished_reason="length") == 2
    assert counted.total("prefix_cache_hits_total") == hits
    assert second["metrics"].keys() >= {
        "queue_time_ms",
        "time_to_first_token_ms",
        "generation_time_ms",
    }
