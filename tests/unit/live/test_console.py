"""What a terminal shows: text that fits 80 columns and says a dash for what was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentload.live.snapshot import ClassFigures, LatencyFigures, LoadFigures, ServerFigures
from agentload.swarm.live.console import block, clock_time, plain_line
from tests.unit.live.test_openmetrics import TOOL, snapshot

BUSY = replace(
    TOOL,
    arm="base",
    turns=123_456,
    errors=12_345,
    ttft=LatencyFigures(9, p50_s=123.4, p99_s=1234.5),
    itl=LatencyFigures(9, p50_s=0.0123, p99_s=0.456),
    output_tokens_per_s=98_765.4,
)


def spaced(text: str) -> str:
    """With plain spaces between numbers and units."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_every_line_fits_eighty_columns() -> None:
    reason = "a very long reason " * 9
    load = LoadFigures("bad", "invalid", (reason,), 0.123, 0.98, 100, 3)
    server = ServerFigures(9.0, 64.0, 900.0, 0.99, 0.99, 0.987, 12_345.0)
    shown = snapshot(
        arm="a-long-name-of-a-configuration-that-goes-on-and-on",
        classes=(BUSY, replace(BUSY, turn_class="rebuild")), load=load, server=server,
        eta_s=100_000.0, users=1000, target_users=1000,
    )  # fmt: skip
    lines = [text for text, _ in block(shown)]
    assert max(map(len, lines)) <= 79
    head, cold = lines[1], lines[2]
    assert len(head) == len(cold)
    assert lines[-1].endswith("…")


def test_figures_are_shown_with_their_units_and_dashes() -> None:
    lines = [spaced(text) for text, _ in block(snapshot(classes=(BUSY,)))]
    row = lines[2].split()
    assert row[:3] == ["tool", "123456", "12345"]
    assert "123 s" in lines[2]
    assert "12.3 ms" in lines[2]
    assert "456 ms" in lines[2]
    assert "90.0%" in lines[2]
    empty = [text for text, _ in block(snapshot(classes=(ClassFigures("cold", "base"),)))]
    assert empty[2].split() == ["cold", "0", "0", *"––––––"]


def test_a_fault_of_the_load_generator_and_of_turns_is_coloured() -> None:
    styles = [style for _, style in block(snapshot(load=LoadFigures("warn", "suspect", ("why",))))]
    assert styles[2] == "red"
    assert styles[-2:] == ["yellow", "yellow"]


def test_one_line_has_the_state_the_times_and_the_verdict() -> None:
    load = LoadFigures("good", "valid", (), 0.001, 0.2, 2, 1)
    shown = snapshot(classes=(BUSY,), load=load, server=ServerFigures(running=5.0, waiting=2.0))
    line = spaced(plain_line(replace(shown, arm="base", eta_s=90.0)))
    assert "\n" not in line
    for part in ("base: running (high) 00:30", "left 01:30", "users 0/4", "5 running, 2 waiting"):
        assert part in line
    assert "load: valid, loop lag P99 1 ms, CPU 20%, 1 of 2 workers" in line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "00:00"), (75, "01:15"), (3600, "1:00:00"), (90_061, "1d 01:01:01"), (-1, "00:00")],
)
def test_times_are_written_as_clocks_do(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text
