"""What is kept of a server's `/metrics` page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from agentload.recording.record import ScrapeSample

MAX_PAGE_BYTES = 8_000_000
MAX_SAMPLES = 50_000
MAX_LABEL_CHARS = 200

# Families by their name without the `_total` that newer exporters add. Several spellings of one
# meaning can be on one page; all that are there are kept and the analysis chooses.
FAMILIES = frozenset(
    {
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_prefill_kv_computed_tokens",
        "vllm:request_success",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:num_requests_swapped",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_queries",
        "vllm:gpu_prefix_cache_hits",
        "vllm:gpu_prefix_cache_hit_rate",
        "vllm:external_prefix_cache_queries",
        "vllm:external_prefix_cache_hits",
        "vllm:prompt_tokens",
        "vllm:prompt_tokens_cached",
        "vllm:prompt_tokens_by_source",
        "vllm:prompt_tokens_cached_by_source",
        "vllm:generation_tokens",
        "vllm:num_preemptions",
        "vllm:iteration_tokens_total",
        "vllm:cache_config_info",
        "vllm:admission_rejections",
        "process_cpu_seconds",
        "process_start_time_seconds",
    }
)
# Of a DCGM exporter: GPU memory in MiB, utilisation in percent, engines as shares, power in watts.
GPU_FAMILIES = frozenset(
    {
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_FB_RESERVED",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
    }
)
# What DCGM says for "not supported", "not found": 2^47 and a little more as a fraction, about 2^63
# as a whole number.
DCGM_BLANK = 2.0**47
SIMULATOR_PREFIX = "agentload_sim_"
_SIM_LATE = "agentload_sim_late_chunks_total"
_SIM_SENT = "agentload_sim_lateness_seconds_count"
_SUFFIX = re.compile(r"_(total|bucket|sum|count|created)$")
_NAME = re.compile(r"(?:# (?:TYPE|HELP) )?([A-Za-z_:][A-Za-z0-9_:]*)")


class PageError(ValueError):
    """The page is no Prometheus text; the text says where."""


def samples(page: str, endpoint: str, time_s: float) -> Iterator[ScrapeSample]:
    """The samples worth keeping; raises PageError for a page that cannot be read.

    A value that is not finite, or one of DCGM's blanks, is left out: it is not measured, not 0.
    """
    count = 0
    try:
        for family in text_string_to_metric_families(_wanted_lines(page)):
            for sample in family.samples:
                if sample.name.endswith("_created") or not _is_measured(sample.name, sample.value):
                    continue
                count += 1
                if count > MAX_SAMPLES:
                    raise PageError(f"more than {MAX_SAMPLES} samples")
                labels = {k: v[:MAX_LABEL_CHARS] for k, v in sorted(sample.labels.items())}
                text = json.dumps(labels, separators=(",", ":"))
                yield ScrapeSample(time_s, endpoint, sample.name, text, sample.value)
    except PageError:
        raise
    except Exception as error:  # the parser raises whatever its slicing of a bad line comes to
        raise PageError(f"not a Prometheus page: {str(error)[:120]}") from None


def _is_measured(name: str, value: float) -> bool:
    return math.isfinite(value) and not (name.startswith("DCGM_") and value >= DCGM_BLANK)


def _wanted_lines(page: str) -> str:
    """Only lines of families that are kept: the parser is what a scrape costs."""
    return "\n".join(line for line in page.split("\n") if _is_wanted(line)) + "\n"


def _is_wanted(line: str) -> bool:
    found = _NAME.match(line)
    if found is None:
        return False
    name = found[1]
    return (
        name in FAMILIES
        or name in GPU_FAMILIES
        or _SUFFIX.sub("", name) in FAMILIES
        or name.startswith(SIMULATOR_PREFIX)
    )


def simulator_late_share(first_page: str, last_page: str) -> float | None:
    """Share of the chunks between two pages that the simulator sent late; None on another server.

    A count that fell is a restarted server's: its own count stands.
    """
    late, sent = (
        _increase(_SIM_LATE, first_page, last_page),
        _increase(_SIM_SENT, first_page, last_page),
    )
    return late / sent if late is not None and sent else None


def _increase(metric: str, first_page: str, last_page: str) -> float | None:
    before, after = _sum_of(metric, first_page), _sum_of(metric, last_page)
    if before is None or after is None:
        return after
    return after - before if after >= before else after


def _sum_of(metric: str, page: str) -> float | None:
    values = [s.value for s in samples(page, "", 0.0) if s.metric == metric]
    return sum(values) if values else None


def info_labels(page: str, family: str) -> dict[str, str]:
    """The labels of the first sample of an info family; empty when it is not there.

    Raises PageError for lines that cannot be read.
    """
    lines = [line for line in page.split("\n") if line.startswith(family + "{")]
    try:
        for found in text_string_to_metric_families("\n".join(lines[:1]) + "\n"):
            for sample in found.samples:
                return {k: v[:MAX_LABEL_CHARS] for k, v in sample.labels.items()}
    except Exception as error:
        raise PageError(f"not a Prometheus page: {str(error)[:120]}") from None
    return {}
