"""The log lines against those recorded from a real vLLM."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from agentload.clock import VirtualClock
from agentload.sim.core import Frontend
from agentload.sim.server.live import LiveEngine
from agentload.sim.server.metrics import VllmMetrics
from agentload.sim.server.page import TimeKeeping
from agentload.sim.server.settings import read
from agentload.sim.server.stats_log import StatsLog, log_start
from agentload.sim.server.timer import LoopTimer

RECORDED = Path(__file__).parents[2] / "goldens" / "vllm-0.32.0" / "server-log-0.32.0.txt"


def pattern(line: str) -> str:
    """The line as a pattern: any number for a number, any device for the device."""
    message = line.partition("] ")[2]
    numbers = re.split(r"[\d,]*\d(?:\.\d+)?", message)
    return r"[\d,.]+".join(map(re.escape, numbers)).replace("CPU", "GPU")


@pytest.fixture
def keeping() -> TimeKeeping:
    return TimeKeeping(0.0, {})


@pytest.fixture
def log(keeping: TimeKeeping) -> StatsLog:
    settings = read([], {})
    clock = VirtualClock()
    metrics = VllmMetrics("m", 32768, 1.0, 0.0)
    live = LiveEngine(
        settings.engine, settings.cost_file.step_cost(), Frontend(0, 0), metrics,
        keeping.delivered, clock, make_timer=LoopTimer,
    )  # fmt: skip
    made = StatsLog(live, metrics, keeping, clock)
    clock.advance_s(10)
    metrics.step(Counter({0.01: 200}), [])
    return made


def test_the_line_of_every_ten_seconds(log: StatsLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log.tell()
    [line] = caplog.messages
    recorded = [one for one in RECORDED.read_text().splitlines() if "Engine 000" in one]
    assert re.fullmatch(pattern(recorded[0]), line)
    assert "Avg generation throughput: 20.0 tokens/s" in line


def test_an_idle_server_is_silent_after_one_line(
    log: StatsLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(4):
        log.tell()
        log._clock.advance_s(10)  # type: ignore[attr-defined]
    assert len(caplog.messages) == 2


def test_lateness_is_told(
    log: StatsLog, keeping: TimeKeeping, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keeping.delivered(0.004, 90)
    keeping.delivered(0.080, 10)
    log.tell()
    assert "10 of 100 chunks left more than 5 ms late, the worst 80 ms" in caplog.messages[-1]
    page = "\n".join(keeping.lines())
    assert "agentload_sim_late_chunks_total 10.0" in page
    assert "agentload_sim_lateness_max_seconds 0.08" in page


def test_the_start_tells_what_is_in_force(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log_start(read(["--max-model-len", "131072", "--num-gpu-blocks-override", "9000"], {}))
    text = "\n".join(caplog.messages)
    for words in (
        "enable_prefix_caching=True",
        "enable_chunked_prefill=True",
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        "YaRN",
    ):
        assert words in text
    recorded = next(one for one in RECORDED.read_text().splitlines() if "KV cache size" in one)
    assert any(re.fullmatch(pattern(recorded), message) for message in caplog.messages)
