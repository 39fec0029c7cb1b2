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
