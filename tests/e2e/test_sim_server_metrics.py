"""`/metrics` of the embedded server against vLLM's recorded page, and against the truth."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.sim_process import MODEL, Sim, engine_sample

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0" / "metrics-0.32.0.txt"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    log = tmp_path_factory.mktemp("sim") / "requests.jsonl"
    with Sim("--num-gpu-blocks-override", "2200", log=log) as sim:
        yield sim


@pytest.fixture(scope="module")
def page(sim: Sim) -> str:
    """The page after a request to each of the recorded routes that are served."""
    asked = {"model": MODEL, "max_tokens": 2, "ignore_eos": True}
    sim.post("/v1/completions", {**asked, "prompt": "import os"})
    sim.post("/v1/chat/completions", {**asked, "messages": [{"role": "user", "content": "a"}]})
    sim.post("/v1/completions", {**asked, "prompt": []})
    sim.post("/v1/chat/completions", {})
    sim.get("/v1/models")
    sim.post("/tokenize", {"prompt": "a"})
    sim.post("/detokenize", {"tokens": [1]})
    sim.get("/v1/nothing")
    sim.post("/v1/nothing", {})
    return sim.get("/metrics").body.decode()


def types(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def series(page: str, prefix: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Names and labels of all samples; the value of a label that only this server can know is *."""
    own = {"model_name", "block_size", "effective_attention_block_size", "kv_cache_memory_bytes"}
    own |= {"kv_cache_max_concurrency", "kv_cache_size_tokens", "num_gpu_blocks"}
    own |= {"num_gpu_blocks_override"}
    found = set()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                labels = {k: "*" if k in own else v for k, v in sample.labels.items()}
                found.add((sample.name, frozenset(labels.items())))
    return found


def test_families_and_types_are_those_recorded(page: str) -> None:
    ours, real = types(page), types(RECORDED.read_text())
    assert {name: kind for name, kind in ours.items() if "agentload_sim" not in name} == real


@pytest.mark.parametrize("prefix", ["vllm:", "http_"])
def test_labels_and_bucket_edges_are_those_recorded(page: str, prefix: str) -> None:
    real = {(n, labels) for n, labels in series(RECORDED.read_text(), prefix)
            if ("handler", "/v1/messages") not in labels}  # fmt: skip
    assert series(page, prefix) == real


def test_settings_are_told(page: str) -> None:
    [cache] = re.findall(r"^vllm:cache_config_info\{(.*)\} 1.0$", page, re.M)
    assert 'num_gpu_blocks="2200"' in cache
    assert 'block_size="16"' in cache
    assert 'enable_prefix_caching="True"' in cache
    [own] = re.findall(r"^agentload_sim_info\{(.*)\} 1.0$", page, re.M)
    assert 'speed="1"' in own
    assert 'enable_chunked_prefill="True"' in own


def test_a_request_is_counted_with_its_own_times(sim: Sim) -> None:
    before = sim.metrics()
    stream = sim.chat("some text " * 100, max_tokens=9, ignore_eos=True)
    after = sim.metrics()
    line = sim.log_line(stream.events[0]["id"])

    def grown(name: str) -> float:
        return after[engine_sample(name)] - before[engine_sample(name)]

    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("time_to_first_token_seconds_sum") == pytest.approx(
        line["first_token_s"] - line["arrival_s"], abs=1e-6
    )
    assert grown("request_prefill_time_seconds_sum") == pytest.approx(
        line["first_token_s"] - line["scheduled_s"], abs=1e-6
    )
    assert grown("request_queue_time_seconds_sum") == pytest.approx(
        line["scheduled_s"] - line["queued_s"], abs=1e-6
    )
    decode_s = line["last_token_s"] - line["first_token_s"]
    assert grown("request_decode_time_seconds_sum") == pytest.approx(decode_s, abs=1e-6)
    assert grown("inter_token_latency_seconds_sum") == pytest.approx(decode_s, abs=1e-6)
    assert grown("request_time_per_output_token_seconds_sum") == pytest.approx(
        decode_s / 8, abs=1e-6
    )
    # A prompt counts once in its first step: 1,000 bytes are 250 tokens, the marks are 5.
    assert grown("iteration_tokens_total_sum") == 255 + 9
    assert grown("request_prompt_tokens_sum") == 255
    assert grown("request_params_max_tokens_sum") == 9


def test_gauges_show_running_waiting_and_blocks() -> None:
    """Six streams on four seats: two wait; each runner holds the blocks of its prompt."""
    body = {"model": MODEL, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    ids = list(range(1600))
    flags = ["--num-gpu-blocks-override", "2200", "--max-num-seqs", "4"]
    with Sim(*flags) as sim, ExitStack() as stack:
        for i in range(6):
            one = stack.enter_context(sim.open("/v1/completions", {**body, "prompt": [i, *ids]}))
            while i < 4 and b"data:" not in one.recv(1 << 16):
                pass
        until_s = time.monotonic() + 10
        while (now := sim.metrics())[engine_sample("num_requests_waiting")] < 2:
            assert time.monotonic() < until_s
        assert now[engine_sample("num_requests_running")] == 4
        # 1,601 tokens and some generated ones are 101 to 226 blocks of the 2,199 usable ones.
        assert 403.5 / 2199 < now[engine_sample("kv_cache_usage_perc")] < 4 * 226.5 / 2199
