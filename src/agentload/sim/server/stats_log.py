"""The log lines that people read off a vLLM server."""

from __future__ import annotations

import asyncio
import logging

from agentload.clock import NS_PER_S, Clock
from agentload.sim.server.live import LiveEngine
from agentload.sim.server.metrics import VllmMetrics
from agentload.sim.server.page import LATE_S, TimeKeeping
from agentload.sim.server.settings import Settings

logger = logging.getLogger("agentload.sim")

_INTERVAL_S = 10.0  # as vLLM


def log_start(settings: Settings) -> None:
    engine = settings.engine
    logger.info(
        "Initializing a simulated V1 LLM engine (v%s) with config: model='%s', gpu='%s', "
        "max_seq_len=%d, max_num_seqs=%d, max_num_batched_tokens=%d, "
        "enable_prefix_caching=%s, enable_chunked_prefill=%s, "
        "long_prefill_token_threshold=%d, async_scheduling=%s, speed=%g",
        settings.vllm_version, settings.model_profile, settings.gpu_profile, engine.max_model_len,
        engine.max_num_seqs, engine.max_num_batched_tokens, engine.enable_prefix_caching,
        engine.chunks_prefills, engine.long_prefill_token_threshold,
        engine.async_scheduling, settings.speed,
    )  # fmt: skip
    if engine.chunks_prefills:
        logger.info(
            "Chunked prefill is enabled with max_num_batched_tokens=%d.",
            engine.max_num_batched_tokens,
        )
    cached = engine.usable_blocks * engine.block_size
    logger.info(
        "GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
        f"{cached:,}", f"{engine.max_model_len:,}", cached / engine.max_model_len,
    )  # fmt: skip
    if engine.max_model_len > settings.own_model_len:
        logger.warning(
            "max_model_len %d is more than the %d that %s is made for: a real server needs rope"
            " scaling (YaRN) to take it",
            engine.max_model_len, settings.own_model_len, settings.model_profile,
        )  # fmt: skip
    for fault in settings.faults:
        logger.warning("Fault on purpose: %s", fault.spec)


class StatsLog:
    """vLLM's line every ten seconds; nothing while the server stays idle."""

    def __init__(
        self, live: LiveEngine, metrics: VllmMetrics, time_keeping: TimeKeeping, clock: Clock
    ) -> None:
        self._live = live
        self._metrics = metrics
        self._time_keeping = time_keeping
        self._clock = clock
        self._was = (clock.now_ns(), 0.0, 0.0, 0, 0)
        self._was_idle = True

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.tell()

    def tell(self) -> None:
        """Log what happened since the last call."""
        engine, metrics, keeping = self._live.current(), self._metrics, self._time_keeping
        now = (
            self._clock.now_ns(), metrics.prompt_tokens_computed, metrics.tokens_generated,
            keeping.chunks, keeping.late_chunks,
        )  # fmt: skip
        was_ns, was_prompt, was_generated, was_chunks, was_late = self._was
        self._was = now
        seconds = (now[0] - was_ns) / NS_PER_S
        prompt, generated = (now[1] - was_prompt) / seconds, (now[2] - was_generated) / seconds
        idle = not (prompt or generated or engine.running_count or engine.waiting_count)
        if idle and self._was_idle:
            return
        self._was_idle = idle
        logger.info(
            "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: "
            "%.1f tokens/s, Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, "
            "Prefix cache hit rate: %.1f%%",
            prompt, generated, engine.running_count, engine.waiting_count,
            engine.kv_usage * 100, metrics.recent_hit_rate() * 100,
        )  # fmt: skip
        late, chunks = now[4] - was_late, now[3] - was_chunks
        if late:
            logger.warning(
                "The simulator fell behind real time: %d of %d chunks left more than %.0f ms late, "
                "the worst %.0f ms; times measured on this server are too long",
                late, chunks, LATE_S * 1000, keeping.worst_s * 1000,
            )  # fmt: skip
