"""What the doctor makes of what it saw: one finding a question, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from agentload.client.chunking import chunking
from agentload.client.errors import MENDS
from agentload.client.models import ServedModels
from agentload.client.result import StreamResult
from agentload.clock import NS_PER_S

Level = Literal["ok", "warn", "fail"]

# A prompt that is cached takes this share of its first TTFT or less; without a cache it is 1.
WARM_SHARE = 0.6
CLOCK_SKEW_S = 2.0  # the Date header has whole seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: what was asked, how it stands, what was seen, what mends it."""

    name: str
    level: Level
    seen: str
    mend: str = ""


def of_models(configured: str | None, found: ServedModels) -> Finding:
    served = ", ".join(found.served[:10]) or "none"
    if found.model is None:
        asked = f"{configured!r} is not served" if configured else "no model is configured"
        mend = f"set the model (--model, OPENAI_MODEL) to {found.suggestion or 'one of these'}"
        return Finding("model", "fail", f"{asked}; served: {served}", mend)
    return Finding("model", "ok", f"{found.model} (served: {served})")


def of_round_trip(seconds: Sequence[float]) -> Finding:
    """`seconds` of small requests, one after the other on one connection."""
    low, middle = min(seconds), median(seconds)
    seen = f"small request: least {low * 1e3:.1f} ms, median {middle * 1e3:.1f} ms"
    if middle > 0.1:
        mend = "run the load nearer to the server: this is part of every TTFT"
        return Finding("round trip", "warn", seen, mend)
    return Finding("round trip", "ok", seen)


def of_clock(server_unix_s: float | None, client_unix_s: float) -> Finding:
    """The server's Date header against this machine's wall clock."""
    if server_unix_s is None:
        return Finding("clock", "ok", "the server sends no date; no time of the server is used")
    skew_s = client_unix_s - server_unix_s
    seen = f"this machine is {skew_s:+.0f} s from the server"
    if abs(skew_s) > CLOCK_SKEW_S:
        mend = "set both clocks by NTP, or logs of the two cannot be lined up"
        return Finding("clock", "warn", seen, mend)
    return Finding("clock", "ok", f"{seen} (to the second)")


def of_rate_limits(headers: Mapping[str, str]) -> Finding:
    limits = {
        name: value
        for name, value in headers.items()
        if "ratelimit" in name.lower() or "rate-limit" in name.lower()
    }
    if not limits:
        return Finding("rate limit", "ok", "no rate limit headers")
    seen = ", ".join(f"{name}: {value}" for name, value in sorted(limits.items()))
    mend = "raise the limits of this key above the planned load, or turns end as rate_limited"
    return Finding("rate limit", "warn", seen, mend)


def of_tokenizer(cuts: bool) -> Finding:
    """`cuts`: parts of a text have the ids of the whole."""
    if cuts:
        return Finding("tokenizer", "ok", "/tokenize gives ids; only what is new is sent to it")
    seen = "/tokenize gives ids, but those of parts are not those of the whole"
    mend = "set tokenizer in the scenario, or each turn sends the whole history to /tokenize"
    return Finding("tokenizer", "warn", seen, mend)


def of_request(result: StreamResult) -> Finding:
    if result.status != "success":
        seen = f"{result.error_class}: {result.error_text}"
        wait_s = result.retry_after_s
        seen += "" if wait_s is None else f" (Retry-After: {wait_s:g} s)"
        mend = MENDS.get(result.error_class or "", "mend this first")
        return Finding("request", "fail", seen, f"{mend}: every turn would fail alike")
    return Finding("request", "ok", f"answered with {result.output_tokens} tokens")


def of_streaming(result: StreamResult) -> Finding:
    stamps = result.chunk_ns
    if len(stamps) < 5:
        mend = "ask again with a model that answers at more length"
        return Finding("streaming", "warn", f"only {len(stamps)} chunks to judge by", mend)
    gaps_ms = [(b - a) / 1e6 for a, b in pairwise(stamps)]
    seen = f"{len(stamps)} chunks, median gap {median(gaps_ms):.1f} ms"
    if "buffered_stream" in result.flags:
        mend = (
            "turn response buffering off in the proxy (nginx: proxy_buffering off, HTTP/1.1 "
            "upstream; or X-Accel-Buffering: no): TTFT and gaps mean nothing behind it"
        )
        return Finding("streaming", "fail", f"{seen}: all came at the end at once", mend)
    share = sum(result.merged) / len(stamps)
    if share > 0.1:
        mend = "look for a proxy that joins chunks, or --stream-interval above 1"
        return Finding("streaming", "warn", f"{seen}, {share:.0%} came joined to another", mend)
    return Finding("streaming", "ok", seen)


def of_stamps(result: StreamResult, proxy: str | None) -> Finding:
    way = f"through proxy {proxy}" if proxy else "straight to the target"
    seen = f"{way}, chunk times by the {result.stamp_source}"
    if proxy:
        return Finding("stamps", "warn", seen, "exclude the host with NO_PROXY: a proxy adds time")
    if result.stamp_source == "user":
        mend = "run on Linux, which stamps TCP bytes: else a busy client adds its own lateness"
        return Finding("stamps", "warn", seen, mend)
    return Finding("stamps", "ok", seen)


def of_usage(result: StreamResult) -> Finding:
    if result.token_source != "usage":
        mend = "let the gateway pass stream_options.include_usage and the last chunk"
        return Finding("usage", "warn", "no usage in the stream: tokens are a lower bound", mend)
    return Finding(
        "usage", "ok", f"{result.prompt_tokens} prompt and {result.output_tokens} output tokens"
    )


def of_cached_tokens(result: StreamResult) -> Finding:
    if result.cached_tokens is None:
        mend = "start vLLM with --enable-prompt-tokens-details; until then hits come from /metrics"
        return Finding("cached tokens", "warn", "usage does not tell cached tokens", mend)
    return Finding("cached tokens", "ok", "usage tells them for each request")


def of_chunk_tokens(result: StreamResult) -> Finding:
    if result.chunk_tokens is None:
        mend = "fine without speculative decoding; vLLM's continuous_usage_stats would tell"
        return Finding("tokens per chunk", "warn", "the server does not tell them", mend)
    most = max(result.chunk_tokens)
    return Finding("tokens per chunk", "ok", f"the server tells them; at most {most} in a chunk")


def of_server_times(result: StreamResult) -> Finding:
    if result.server_times is None:
        mend = "start vLLM with --enable-per-request-metrics for the split of each TTFT"
        return Finding("per-request times", "warn", "no queue and prefill time per request", mend)
    return Finding("per-request times", "ok", "queue, prefill and decode time of each request")


METRIC_SPELLINGS = {
    "prefix cache": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "KV use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "ITL": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue time": ("vllm:request_queue_time_seconds",),
}


def of_metrics_page(page: str | None, fault: str, url: str) -> Finding:
    """`page` is None when it could not be had; `fault` then says why."""
    if page is None:
        mend = (
            "give its address by --metrics-url, or open it at the gateway; without it there is no "
            "queue length and nothing to check the client's ITL against"
        )
        return Finding("metrics page", "warn", f"{url}: {fault}", mend)
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[:1] != "#"}
    bare = {name.removesuffix("_total").removesuffix("_count") for name in names}
    found = {
        meaning: [spelling for spelling in spellings if spelling in bare]
        for meaning, spellings in METRIC_SPELLINGS.items()
    }
    seen = "; ".join(f"{meaning}: {', '.join(s) or 'missing'}" for meaning, s in found.items())
    if not all(found.values()):
        mend = "use a vLLM of 0.8 or later for the missing ones; they stay unknown, not 0"
        return Finding("metrics page", "warn", f"{url}: {seen}", mend)
    return Finding("metrics page", "ok", f"{url}: {seen}")


def of_prefix_cache(cold: StreamResult, again: StreamResult, changed: StreamResult) -> Finding:
    """The same prompt twice, then with one early character changed."""
    results = (cold, again, changed)
    failed = [r for r in results if r.status != "success"]
    if failed:
        return Finding("prefix cache", "warn", f"not tried: {failed[0].error_class}")
    if again.cached_tokens is not None and again.prompt_tokens:
        share = again.cached_tokens / again.prompt_tokens
        after_change = (changed.cached_tokens or 0) / (changed.prompt_tokens or 1)
        seen = f"{share:.0%} of a repeated prompt cached, {after_change:.0%} after an early change"
        effective, leaks = share > 0.5, after_change > 0.5
    else:
        first, second, third = (_ttft_s(r) for r in results)
        seen = f"TTFT {first:.3f} s, repeated {second:.3f} s, early change {third:.3f} s"
        effective, leaks = second < WARM_SHARE * first, third < WARM_SHARE * first
    if not effective:
        mend = "start vLLM with --enable-prefix-caching, or find the router that splits sessions"
        return Finding("prefix cache", "warn", f"no effect: {seen}", mend)
    if leaks:
        mend = "look for a cache in the gateway: it would answer without the model"
        return Finding("prefix cache", "warn", f"hits in spite of a change: {seen}", mend)
    return Finding("prefix cache", "ok", seen)


def of_chunked_prefill(decoding: StreamResult, prompt: StreamResult) -> Finding:
    """A stream that decodes while a long prompt, never seen before, is sent beside it."""
    name, found = "chunked prefill", chunking(decoding, prompt)
    if found.effective is None or found.longest_gap_s is None:
        tried = found.prefill_s is not None
        mend = "try a longer prompt with --long-prompt-tokens" if tried else ""
        return Finding(name, "warn", found.why_not, mend)
    seen = (
        f"longest gap of the neighbour {found.longest_gap_s * 1e3:.0f} ms during a prefill of "
        f"{found.prefill_s:.2f} s ({found.prompt_tokens} tokens)"
    )
    if not found.effective:
        mend = "start vLLM with --enable-chunked-prefill: a cold prompt stops all streams"
        return Finding(name, "warn", f"off: {seen}", mend)
    tokens = found.chunk_tokens
    chunk = "" if tokens is None else f"; about {tokens} tokens in a chunk"
    return Finding(name, "ok", f"on: {seen}{chunk}")


def of_request_id(result: StreamResult, sent: str) -> Finding:
    if result.server_request_id and sent in result.server_request_id:
        return Finding("request id", "ok", f"kept: {result.server_request_id}")
    mend = "let the gateway pass X-Request-Id, to find turns in the server's log"
    return Finding("request id", "warn", "the id that was sent does not come back", mend)


def worst(findings: Iterable[Finding]) -> Level:
    """fail above warn above ok."""
    levels = {finding.level for finding in findings}
    return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


def _ttft_s(result: StreamResult) -> float:
    return (result.chunk_ns[0] - (result.send_start_ns or 0)) / NS_PER_S
