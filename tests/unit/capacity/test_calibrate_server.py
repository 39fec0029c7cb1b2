"""What a server's pages and headers say about whether it can be calibrated."""

from __future__ import annotations

import pytest

from agentload.capacity.calibrate.server import profile_of, rate_limit, read_metrics

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="1001"} 1.0
"""


def test_a_metrics_page_is_summed_over_engines() -> None:
    facts = read_metrics(PAGE, "0.32.0")
    assert facts.busy == "3 requests running, 0 waiting"
    assert facts.finished == 9
    assert (facts.kv_blocks, facts.block_size, facts.prefix_caching) == (1001, 16, True)
    assert facts.kv_tokens == 16_000
    assert facts.sim_speed == 1.0


@pytest.mark.parametrize("page", ["", "<html>not found</html>", "vllm:x{ 1"])
def test_a_page_that_tells_nothing_leaves_everything_unknown(page: str) -> None:
    facts = read_metrics(page)
    assert facts.running is None
    assert facts.kv_tokens is None
    assert facts.busy == ""


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"x-ratelimit-remaining-requests": "20"}, "sends about 250"),
        ({"X-RateLimit-Remaining-Tokens": "5000"}, "sends about 100000"),
        ({"ratelimit-remaining": "3"}, "sends about 250"),
        ({"x-ratelimit-remaining-requests": "9000"}, ""),
        ({"x-ratelimit-limit-requests": "9000", "date": "today"}, ""),
        ({"x-ratelimit-remaining-requests": "unlimited"}, ""),
    ],
)
def test_limits_below_what_is_sent_are_seen(headers: dict[str, str], said: str) -> None:
    found = rate_limit(headers, 250, 100_000)
    assert said in found
    assert bool(found) is bool(said)


def test_a_release_without_a_profile_is_a_warning() -> None:
    assert profile_of("0.32.0") == ("0.32-0.33", "")
    name, warning = profile_of("9.9.0")
    assert name is None
    assert "0.32-0.33" in warning
    assert profile_of(None)[0] is None
