"""The families that vLLM 0.32 exports for its engine, with true values."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import product
from typing import Final, Protocol

from agentload.sim.core.engine import Engine
from agentload.sim.core.request import Request
from agentload.sim.server.exposition import Family, Histogram, Value

_TABLE: Final = "vllm_0_32_metrics.tsv"
_RECENT_REQUESTS: Final = 1000  # vLLM's log line tells the hit rate of that many requests


class Finished(Protocol):
    """A request with all its tokens, as the metrics need it."""

    @property
    def request(self) -> Request: ...

    @property
    def ready_s(self) -> float:
        """When it reached the waiting queue."""

    @property
    def limit(self) -> int:
        """Output tokens it asked for."""

    @property
    def finish_reason(self) -> str:
        """As the engine says it: stop or length."""


def _one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, ... up to `limit`: vLLM's edges for token counts."""
    edges = (base * 10**power for power in range(len(str(limit))) for base in (1, 2, 5))
    return [float(edge) for edge in edges if edge <= limit]


def _families(model: str, max_model_len: int, created_unix_s: float) -> Iterator[Family]:
    table = resources.files(__package__).joinpath(_TABLE).read_text(encoding="utf-8")
    for line in table.splitlines()[1:]:
        name, kind, labels, buckets, help_text = line.split("\t")
        fixed: dict[str, str] = {"model_name": model}
        splits: dict[str, list[str]] = {}
        for label in labels.split():
            key, _, values = label.partition("=")
            if values:
                splits[key] = values.split("|")
            elif key == "engine":
                fixed["engine"] = "0"
        tokens = buckets == "1-2-5"
        edges = _one_two_five(max_model_len) if tokens else list(map(float, buckets.split()))
        family = Family(name, kind, help_text, created_unix_s, fixed, tuple(splits), edges)
        for split in product(*splits.values()):
            family.make(split)  # every series is on the page from the start
        yield family


class VllmMetrics:
    """Durations are wall seconds, as a client sees them: simulated ones divided by the speed."""

    def __init__(self, model: str, max_model_len: int, speed: float, created_unix_s: float) -> None:
        made = _families(model, max_model_len, created_unix_s)
        self._families = {family.name: family for family in made}
        self._speed = speed
        self._value("engine_sleep_state", "awake").value = 1.0
        self._itl = self._histogram("inter_token_latency_seconds")
        self._iteration_tokens = self._histogram("iteration_tokens_total")
        self._generated = self._value("generation_tokens_total")
        self._computed = self._value("prompt_tokens_by_source_total", "local_compute")
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_REQUESTS)

    def _value(self, name: str, *split: str) -> Value:
        return self._families[f"vllm:{name}"].value(*split)

    def _histogram(self, name: str) -> Histogram:
        return self._families[f"vllm:{name}"].histogram()

    # -- what happens ---------------------------------------------------------------------------

    def first_token(self, request: Request, at_s: float) -> None:
        cached = request.cached_tokens or 0
        self._recent.append((request.prompt_tokens, cached))
        self._value("prompt_tokens_total").add(request.prompt_tokens)
        self._computed.add(request.prompt_tokens - cached)
        self._value("prompt_tokens_by_source_total", "local_cache_hit").add(cached)
        self._value("prompt_tokens_cached_total").add(cached)
        self._seconds("time_to_first_token_seconds", at_s - request.arrival_s)

    def step(self, gaps_s: Counter[float], first_tokens: Sequence[Request]) -> None:
        """A step gave one token to each sequence in `gaps_s` and a first one to the others."""
        for gap_s, times in gaps_s.items():
            self._itl.observe(gap_s / self._speed, times)
        generated = gaps_s.total() + len(first_tokens)
        self._generated.add(generated)
        prompts = sum(r.prompt_tokens - (r.cached_tokens or 0) for r in first_tokens)
        self._iteration_tokens.observe(generated + prompts)

    def finished(self, done: Finished) -> None:
        """vLLM observes a request's own times when it finishes; aborted ones never."""
        request = done.request
        first_s, last_s = request.first_token_s, request.last_token_s
        scheduled_s, cached = request.scheduled_s, request.cached_tokens or 0
        assert first_s is not None
        assert last_s is not None
        assert scheduled_s is not None
        self._value("request_success_total", done.finish_reason).add(1)
        self._histogram("request_prompt_tokens").observe(request.prompt_tokens)
        self._histogram("request_generation_tokens").observe(request.generated)
        self._histogram("request_params_max_tokens").observe(done.limit)
        self._histogram("request_num_preemptions").observe(request.preemptions)
        computed = self._histogram("request_prefill_kv_computed_tokens")
        computed.observe(request.prompt_tokens - cached)
        self._seconds("e2e_request_latency_seconds", last_s - request.arrival_s)
        self._seconds("request_queue_time_seconds", scheduled_s - done.ready_s)
        self._seconds("request_inference_time_seconds", last_s - scheduled_s)
        self._seconds("request_prefill_time_seconds", first_s - scheduled_s)
        self._seconds("request_decode_time_seconds", last_s - first_s)
        gaps = request.generated - 1
        mean_s = (last_s - first_s) / gaps if gaps else 0.0
        self._seconds("request_time_per_output_token_seconds", mean_s)

    def response_finished(self, choices: int, most_generated: int) -> None:
        """All choices of one API request are done."""
        self._histogram("request_params_n").observe(choices)
        self._histogram("request_max_num_generation_tokens").observe(most_generated)

    def rejected(self) -> None:
        self._value("admission_rejections_total", "max_num_queued_reqs").add(1)

    def _seconds(self, name: str, simulated_s: float) -> None:
        self._histogram(name).observe(max(simulated_s, 0.0) / self._speed)

    # -- what is told ---------------------------------------------------------------------------

    @property
    def prompt_tokens_computed(self) -> float:
        return self._computed.value

    @property
    def tokens_generated(self) -> float:
        return self._generated.value

    def recent_hit_rate(self) -> float:
        """Share (0..1) of prompt tokens found in the cache, over the latest 1,000 requests."""
        queried = sum(prompt for prompt, _ in self._recent)
        return sum(cached for _, cached in self._recent) / queried if queried else 0.0

    def lines(self, engine: Engine) -> Iterator[str]:
        counters, waiting = engine.counters, engine.waiting_count
        for name, value in (
            ("num_requests_running", engine.running_count),
            ("num_requests_waiting", waiting),
            ("kv_cache_usage_perc", engine.kv_usage),
            ("prefix_cache_queries_total", counters.prefix_queries),
            ("prefix_cache_hits_total", counters.prefix_hits),
            ("num_preemptions_total", counters.preemptions),
        ):
            self._value(name).value = value
        self._value("num_requests_waiting_by_reason", "capacity").value = waiting
        self._value("prompt_tokens_cached_by_source_total", "device").value = counters.prefix_hits
        for family in self._families.values():
            yield from family.lines()


def cache_config_family(labels: Mapping[str, str]) -> Family:
    """`vllm:cache_config_info`: the cache's settings, all in labels."""
    text = "Information of the LLMEngine CacheConfig"
    family = Family("vllm:cache_config_info", "gauge", text, 0.0, {"engine": "0", **labels})
    family.value().value = 1.0
    return family
