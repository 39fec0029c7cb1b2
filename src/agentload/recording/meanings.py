"""Names under which servers export what one figure needs."""

from __future__ import annotations

# One meaning, its names from the current one to the oldest. `_total` is added by most clients.
ALIASES: dict[str, tuple[str, ...]] = {
    "prefix_cache_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "prefix_cache_hit_rate": ("vllm:gpu_prefix_cache_hit_rate", "vllm:prefix_cache_hit_rate"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions": ("vllm:num_preemptions",),
    "finished": ("vllm:request_success",),
    "generation_tokens": ("vllm:generation_tokens",),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue_time": ("vllm:request_queue_time_seconds",),
    "prefill_time": ("vllm:request_prefill_time_seconds",),
    "cache_config": ("vllm:cache_config_info",),
    "process_start": ("process_start_time_seconds",),
    "gpu_used_mib": ("DCGM_FI_DEV_FB_USED",),
    "gpu_free_mib": ("DCGM_FI_DEV_FB_FREE",),
    "gpu_util_percent": ("DCGM_FI_DEV_GPU_UTIL",),
    "gpu_engine_share": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE",),
}
