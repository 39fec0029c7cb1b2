"""What is kept of a hostile, an old, and a new `/metrics` page."""

from __future__ import annotations

import json

import pytest

from agentload.recording.metrics_page import PageError, samples

NEW = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1e+06
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:gpu_prefix_cache_hits counter
vllm:gpu_prefix_cache_hits{model_name="m"} 4.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 1.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"} 2.0
vllm:request_queue_time_seconds_count{engine="0"} 2.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.5
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_count{engine="0"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} NaN
# TYPE http_requests_total counter
http_requests_total{handler="/v1"} 5.0
"""


def kept(page: str) -> dict[str, float]:
    return {f"{s.metric}{s.labels}": s.value for s in samples(page, "http://h/metrics", 1.5)}


def test_the_families_of_the_metrics_page_are_kept_and_others_left_out() -> None:
    assert kept(NEW) == {
        'vllm:num_requests_running{"engine":"0","model_name":"m"}': 3.0,
        'vllm:prefix_cache_queries_total{"engine":"0","model_name":"m"}': 1e6,
        # the official parser gives every counter its suffix
        'vllm:gpu_prefix_cache_hits_total{"model_name":"m"}': 4.0,
        'vllm:request_queue_time_seconds_bucket{"engine":"0","le":"0.3"}': 1.0,
        'vllm:request_queue_time_seconds_bucket{"engine":"0","le":"+Inf"}': 2.0,
        'vllm:request_queue_time_seconds_count{"engine":"0"}': 2.0,
        'vllm:request_queue_time_seconds_sum{"engine":"0"}': 0.5,
        'vllm:iteration_tokens_total_count{"engine":"0"}': 9.0,
    }


def test_a_sample_says_where_and_when() -> None:
    first = next(iter(samples(NEW, "http://h/metrics", 1.5)))
    assert (first.time_s, first.endpoint) == (1.5, "http://h/metrics")


def test_labels_of_any_text_stay_json_and_are_cut() -> None:
    page = 'vllm:num_requests_running{model_name="' + 'a\\"b' * 200 + '"} 1\n'
    only = next(iter(samples(page, "e", 0.0)))
    labels = json.loads(only.labels)
    assert len(labels["model_name"]) == 200
    assert labels["model_name"].startswith('a"ba"b')


@pytest.mark.parametrize(
    "page",
    [
        'vllm:num_requests_running{engine="0} 1\n',
        "vllm:num_requests_running one\n",
        "vllm:num_requests_running{engine} 1\n",
        "vllm:num_requests_running{\n",
    ],
)
def test_a_page_that_cannot_be_read_is_one_error(page: str) -> None:
    with pytest.raises(PageError, match="not a Prometheus page"):
        list(samples(page, "e", 0.0))


@pytest.mark.parametrize("page", ["", "\x00\xff", "<html>404</html>", '{"detail":"Not Found"}'])
def test_a_page_without_metrics_gives_nothing(page: str) -> None:
    assert kept(page) == {}


def test_a_flood_of_series_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentload.recording.metrics_page.MAX_SAMPLES", 10)
    page = "".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(11))
    with pytest.raises(PageError, match="more than 10 samples"):
        list(samples(page, "e", 0.0))


# Two GPUs as a DCGM exporter shows them, one of which cannot tell its utilisation: the whole-number
# and the fractional "not supported" (dcgm_fields.h: 0x7ffffffffffffff2, 2^47 + 2).
DCGM = """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-604ac76c",modelName="NVIDIA H100 80GB HBM3"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1c2f9d10"} 9223372036854775794
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-604ac76c"} 71234
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-1c2f9d10"} NaN
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 140737488355330.0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1"} 0.0
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 12345678
"""


def test_of_a_dcgm_page_memory_and_use_are_kept_and_blanks_are_not_measured() -> None:
    found = {(s.metric, json.loads(s.labels)["gpu"]): s.value for s in samples(DCGM, "", 0.0)}
    assert found == {
        ("DCGM_FI_DEV_GPU_UTIL", "0"): 97.0,
        ("DCGM_FI_DEV_FB_USED", "0"): 71234.0,
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "1"): 0.0,
    }
