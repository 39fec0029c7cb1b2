"""What the doctor makes of answers, by answers made by hand."""

from pathlib import Path
from typing import Any

import pytest

from agentload.client import findings
from agentload.client.models import ServedModels
from agentload.client.result import ServerTimes, StreamResult
from agentload.client.server_log import of_server_log, parse_server_log, read_server_log

MS = 1_000_000


def answer(*chunks_ms: float, **fields: Any) -> StreamResult:
    """A success sent at 0 with token chunks at these instants."""
    stamps = [round(ms * MS) for ms in chunks_ms]
    fields = {"status": "success", "merged": [False] * len(stamps), **fields}
    return StreamResult(send_start_ns=0, chunk_ns=stamps, **fields)


def steady(first_ms: float, count: int, gap_ms: float) -> list[float]:
    return [first_ms + at * gap_ms for at in range(count)]


def test_streaming() -> None:
    assert findings.of_streaming(answer(*steady(100, 20, 20))).level == "ok"
    assert findings.of_streaming(answer(1, 2)).level == "warn"
    buffered = answer(*steady(100, 20, 0), flags=("buffered_stream",))
    assert findings.of_streaming(buffered).level == "fail"
    joined = answer(*steady(100, 4, 20), 160, 160, merged=[False] * 4 + [True] * 2)
    assert findings.of_streaming(joined).level == "warn"


@pytest.mark.parametrize(
    ("judge", "present", "flag"),
    [
        (findings.of_cached_tokens, {"cached_tokens": 0}, "--enable-prompt-tokens-details"),
        (findings.of_server_times, {"server_times": ServerTimes()}, "--enable-per-request-metrics"),
        (findings.of_chunk_tokens, {"chunk_tokens": [1, 3]}, "continuous_usage_stats"),
        (findings.of_usage, {"token_source": "usage"}, "stream_options.include_usage"),
        (findings.of_stamps, {"stamp_source": "kernel"}, "Linux"),
    ],
)
def test_what_is_missing_names_what_brings_it(judge: Any, present: Any, flag: str) -> None:
    extra = (None,) if judge is findings.of_stamps else ()
    assert judge(answer(1, **present), *extra).level == "ok"
    missing = judge(answer(1), *extra)
    assert missing.level == "warn"
    assert flag in missing.mend


@pytest.mark.parametrize(
    ("cached", "ttft_ms", "level"),
    [
        ((0, 2900, 0), (900, 100, 900), "ok"),
        ((0, 0, 0), (900, 900, 900), "warn"),
        ((0, 2900, 2900), (900, 100, 100), "warn"),
        ((None, None, None), (900, 100, 850), "ok"),
        ((None, None, None), (900, 850, 900), "warn"),
        ((None, None, None), (900, 100, 100), "warn"),
    ],
)
def test_prefix_cache(cached: tuple[int | None, ...], ttft_ms: tuple[int, ...], level: str) -> None:
    results = [
        answer(ms, cached_tokens=tokens, prompt_tokens=3000)
        for tokens, ms in zip(cached, ttft_ms, strict=True)
    ]
    assert findings.of_prefix_cache(*results).level == level


def decoding_with_gaps(*gaps_ms: float) -> StreamResult:
    """A stream with 20 ms gaps, these gaps from 500 ms on, and 20 ms gaps again."""
    stamps = steady(100, 21, 20)
    for gap in gaps_ms:
        stamps.append(stamps[-1] + gap)
    return answer(*stamps, *steady(stamps[-1] + 20, 20, 20))


def test_tokenizers() -> None:
    assert findings.of_tokenizer(True).level == "ok"
    whole = findings.of_tokenizer(False)
    assert (whole.level, "set tokenizer" in whole.mend) == ("warn", True)


def test_refusals_have_a_mend_of_their_own() -> None:
    limited = findings.of_request(
        StreamResult(error_class="rate_limited", error_text="HTTP 429", retry_after_s=7.0)
    )
    assert (limited.level, limited.seen) == ("fail", "rate_limited: HTTP 429 (Retry-After: 7 s)")
    assert limited.mend.startswith("wait, or raise the limit")
    unknown = findings.of_request(StreamResult(error_class="http_500", error_text="x"))
    assert unknown.mend == "mend this first: every turn would fail alike"


def test_chunked_prefill() -> None:
    # A prompt of 16,000 tokens sent at 510 ms, first token 1,200 ms later.
    prompt = answer(1700, prompt_tokens=16_000)
    prompt.send_start_ns = 510 * MS
    on = findings.of_chunked_prefill(decoding_with_gaps(300, 300, 300, 300), prompt)
    off = findings.of_chunked_prefill(decoding_with_gaps(1190), prompt)
    assert on.level == "ok"
    assert "about 4034 tokens in a chunk" in on.seen  # 16,000 x 300 ms / 1,190 ms
    assert off.level == "warn"
    assert "--enable-chunked-prefill" in off.mend


def test_a_gap_between_chunked_and_not_is_not_judged_by_ttft_alone() -> None:
    prompt = answer(1700, prompt_tokens=16_000)
    prompt.send_start_ns = 510 * MS
    decoding = decoding_with_gaps(830, 360)  # 70 % of 1,190 ms
    unclear = findings.of_chunked_prefill(decoding, prompt)
    assert (unclear.level, "neither" in unclear.seen) == ("warn", True)
    prompt.server_times = ServerTimes(prefill_s=1.19)
    assert findings.of_chunked_prefill(decoding, prompt).level == "ok"


def test_a_prefill_too_short_to_tell() -> None:
    prompt = answer(600, prompt_tokens=100)
    prompt.send_start_ns = 510 * MS
    finding = findings.of_chunked_prefill(decoding_with_gaps(20, 20), prompt)
    assert finding.level == "warn"
    assert "too short" in finding.seen


def test_probes_that_failed_are_not_judged() -> None:
    failed = StreamResult(error_class="context_overflow")
    good = answer(*steady(1, 9, 9))
    for finding in (
        findings.of_prefix_cache(good, failed, good),
        findings.of_chunked_prefill(good, failed),
    ):
        assert (finding.level, "context_overflow" in finding.seen) == ("warn", True)
    assert findings.of_request(failed).level == "fail"


def test_models_and_clock_and_limits() -> None:
    assert findings.of_models("a", ServedModels(("a",), "a", "a", 1)).level == "ok"
    wrong = findings.of_models("b", ServedModels(("a",), None, "a", 1))
    assert (wrong.level, "to a" in wrong.mend) == ("fail", True)
    assert findings.of_clock(None, 5.0).level == "ok"
    assert findings.of_clock(100.0, 101.5).level == "ok"
    assert findings.of_clock(100.0, 130.0).level == "warn"
    assert findings.of_rate_limits({"date": "x"}).level == "ok"
    assert findings.of_rate_limits({"X-RateLimit-Limit-Requests": "60"}).level == "warn"
    assert findings.of_round_trip([0.001, 0.002, 0.5]).level == "ok"
    assert findings.of_round_trip([0.2, 0.2, 0.2]).level == "warn"


def test_metrics_pages() -> None:
    new = (
        '# HELP x\nvllm:prefix_cache_queries_total{a="b"} 1\nvllm:kv_cache_usage_perc 0\n'
        "vllm:inter_token_latency_seconds_count 1\nvllm:request_queue_time_seconds_count 1\n"
    )
    old = "vllm:gpu_prefix_cache_queries 1\nvllm:gpu_cache_usage_perc 0\n"
    assert findings.of_metrics_page(new, "", "u").level == "ok"
    finding = findings.of_metrics_page(old, "", "u")
    assert finding.level == "warn"
    assert "vllm:gpu_prefix_cache_queries" in finding.seen
    assert "ITL: missing" in finding.seen
    assert findings.of_metrics_page(None, "auth", "u").level == "warn"


LOG = Path(__file__).parents[2] / "goldens" / "vllm-0.32.0" / "server-log-0.32.0.txt"


def test_a_recorded_server_log() -> None:
    log = read_server_log(LOG)
    assert (log.stats_lines, log.waiting_lines) == (12, 6)  # counted by hand in the file
    assert (log.most_running, log.most_waiting) == (4, 5)
    assert (log.most_kv_use, log.last_hit_rate) == (0.971, 0.0)
    assert (log.kv_cache_tokens, log.aborts) == (65_536, 1)
    levels = {finding.name: finding.level for finding in of_server_log(log)}
    assert levels["log: queue"] == levels["log: KV cache"] == levels["log: errors"] == "warn"


def test_settings_of_a_servers_start() -> None:
    log = parse_server_log(
        [
            "\x1b[0;36mINFO vLLM API server version 0.32.0\n",
            "INFO non-default args: {'max_num_seqs': 64, 'enable_prefix_caching': True}\n",
            "WARNING sequence group 3 is preempted by RECOMPUTE\n",
            "ERROR 11-29 12:00:00 [serving.py:1] engine 7 died\n",
            "ERROR 11-29 12:00:01 [serving.py:1] engine 8 died\n",
        ]
    )
    assert log.version == "0.32.0"
    assert log.settings == {"max_num_seqs": "64", "enable_prefix_caching": "True"}
    assert log.preemptions == 1
    assert dict(log.faults) == {"engine # died": 2}


def test_a_file_that_is_no_log() -> None:
    [finding] = of_server_log(parse_server_log(["\x00\xff", "x" * 100_000]))
    assert finding.level == "warn"
