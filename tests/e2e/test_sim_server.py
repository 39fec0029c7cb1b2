"""The embedded server as its clients see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.sim_process import MODEL, Sim, engine_sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    log: Path = tmp_path_factory.mktemp("sim") / "requests.jsonl"
    with Sim("--enable-prompt-tokens-details", "--enable-per-request-metrics", log=log) as sim:
        yield sim


def text_of(deltas: list[dict[str, object]]) -> str:
    found = []
    for event in deltas:
        for choice in event["choices"]:  # type: ignore[attr-defined]
            found.append(choice["delta"].get("content", ""))
    return "".join(found)


def test_a_stream_has_a_role_then_one_chunk_per_token_then_usage() -> None:
    with Sim("--speed", "0.1") as slow:  # 77 ms a token: a busy machine merges none
        stream = slow.chat(max_tokens=5, ignore_eos=True, stream_options={"include_usage": True})
    role, *chunks, usage = stream.events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(chunks) == 5
    assert len(text_of(chunks)) == 20
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 4 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert stream.data[-1] == "[DONE]"
    assert stream.http_chunks[-1] == b""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_running_usage_counts_every_token(sim: Sim, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": MODEL, "max_tokens": 9, "ignore_eos": True, "stream": True}
    body |= (
        {"messages": [{"role": "user", "content": "abcd"}]}
        if "chat" in path
        else {"prompt": "abcd" * 6}
    )
    usages = [e["usage"] for e in sim.stream(path, {**body, "stream_options": options}).events]
    assert {usage["prompt_tokens"] for usage in usages} == {6}
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert all(u["total_tokens"] == 6 + u["completion_tokens"] for u in usages)


def test_the_second_sending_is_found_in_the_cache(sim: Sim) -> None:
    content = "the second sending of this " * 40  # 1,080 bytes: 270 tokens
    asked = {"max_tokens": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}
    first, second = (sim.chat(content, **asked).events[-1]["usage"] for _ in range(2))
    # start, role, 270 of text, end, start, role
    assert first["prompt_tokens"] == second["prompt_tokens"] == 275
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 272  # 17 whole blocks of 16


def test_a_history_with_the_answer_finds_the_answer_cached(sim: Sim) -> None:
    asked = {"model": MODEL, "max_tokens": 64, "ignore_eos": True}
    history = [{"role": "user", "content": "write something new " * 20}]
    first = sim.post("/v1/chat/completions", {**asked, "messages": history}).json()
    history += [first["choices"][0]["message"], {"role": "user", "content": "go on " * 50}]
    history[1] = {"role": "assistant", "content": history[1]["content"]}
    second = sim.post("/v1/chat/completions", {**asked, "messages": history}).json()
    whole = first["usage"]["prompt_tokens"] + 63  # the last token's KV is never computed
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == whole // 16 * 16


def test_a_reset_empties_the_cache_once_nothing_runs(sim: Sim) -> None:
    content = "words to be forgotten " * 40
    asked = {"max_tokens": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}

    def cached() -> int:
        usage = sim.chat(content, **asked).events[-1]["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 200
    assert sim.post("/reset_prefix_cache", {}).status == 200
    assert cached() == 0
    body = {"model": MODEL, "prompt": "a", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with sim.open("/v1/completions", body) as running:
        while b"data:" not in running.recv(1 << 16):
            pass
        assert sim.post("/reset_prefix_cache", {}).status == 503


def test_a_salt_keeps_caches_apart(sim: Sim) -> None:
    content = "words of two tenants " * 40
    asked = {"max_tokens": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}

    def cached(**more: str) -> bool:
        usage = sim.chat(content, **asked, **more).events[-1]["usage"]
        return bool(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(), cached(), cached(cache_salt="x"), cached(cache_salt="x")] == [
        False,
        True,
        False,
        True,
    ]


def test_metrics_count_what_was_served(sim: Sim) -> None:
    before = sim.metrics()
    sim.chat("count me " * 30, max_tokens=7, ignore_eos=True)
    after = sim.metrics()

    def grown(name: str) -> float:
        return after[engine_sample(name)] - before[engine_sample(name)]

    assert grown("generation_tokens_total") == 7
    assert grown("prompt_tokens_total") == 73  # 270 bytes and 5 marks
    assert grown("inter_token_latency_seconds_count") == 6
    assert grown("e2e_request_latency_seconds_count") == 1
    assert grown("num_requests_running") == 0


def test_the_metrics_page_is_valid(sim: Sim) -> None:
    families = list(text_string_to_metric_families(sim.get("/metrics").body.decode()))
    assert {"vllm:kv_cache_usage_perc", "process_cpu_seconds"} <= {f.name for f in families}


def test_the_request_log_agrees_with_the_client(sim: Sim) -> None:
    stream = sim.chat(max_tokens=6, ignore_eos=True, stream_options={"include_usage": True})
    line = sim.log_line(stream.events[0]["id"])
    assert line["outcome"] == "finished"
    assert (line["prompt_tokens"], line["output_tokens"]) == (8, 6)
    assert line["chunks"] == len(stream.events) - 2  # without the role and the usage
    instants = ["arrival", "queued", "scheduled", "first_token", "first_chunk_sent"]
    order = [line[f"{name}_ns"] for name in instants]
    assert order == sorted(order)
    seen_ns = stream.read_with(
        b'"content":"' + stream.events[1]["choices"][0]["delta"]["content"].encode()
    )
    assert seen_ns > line["first_token_ns"]
    assert line["first_token_ns"] < line["last_token_ns"] < line["last_chunk_sent_ns"]


def test_side_endpoints(sim: Sim) -> None:
    model = sim.get("/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == (MODEL, 32768)
    assert (sim.get("/health").status, sim.get("/health").body) == (200, b"")
    assert sim.get("/version").json() == {"version": "0.32.0"}
    told = sim.post("/tokenize", {"model": MODEL, "prompt": "import os"}).json()
    assert told["count"] == len(told["tokens"]) == 3
    back = sim.post("/detokenize", {"model": MODEL, "tokens": told["tokens"]}).json()
    assert back == {"prompt": "import os"}
