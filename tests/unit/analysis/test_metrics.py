"""Figures of arms and classes against values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted
import pytest

from analysis.measured import measure
from analysis.metrics import ALL, LATER, ClassFigures, Sourced, arms_of, class_figures
from analysis.results import analyse


def classes(folder: Path, rows: list, traces: list = [], **given: Any) -> dict[str, ClassFigures]:  # noqa: B006
    measured = measure(planted.write_run(folder, rows, traces, **given))
    return {row.turn_class: row for row in class_figures(arms_of([measured])[0])}


def test_cold_turns_stand_apart_from_the_later_ones(tmp_path: Path) -> None:
    rows = [
        planted.turn("s0", 0, ttft=9.0),
        planted.turn("s0", 1, start=30.0, ttft=0.4),
        planted.turn("s0", 2, start=40.0, ttft=0.6, turn_class="user"),
        planted.turn("s0", 3, start=50.0, ttft=5.0, turn_class="rebuild"),
    ]
    found = classes(tmp_path, rows)
    assert list(found) == ["cold", "tool", "user", "rebuild", LATER, ALL]
    assert found["cold"].ttft_s.p50 == 9.0
    assert found[LATER].ttft_s.p50 == 0.6
    assert found[LATER].turns == 3
    assert found[ALL].turns == 4


def test_one_later_class_needs_no_sum(tmp_path: Path) -> None:
    rows = [planted.turn("s0", 0), planted.turn("s0", 1, start=30.0)]
    assert list(classes(tmp_path, rows)) == ["cold", "tool", ALL]


def test_warm_up_and_unmeasured_stages_do_not_count(tmp_path: Path) -> None:
    rows = [
        planted.turn("s0", 0, stage="warm_up", ttft=9.0),
        planted.turn("s0", 1, start=30.0, stage="ramp", ttft=8.0),
        planted.turn("s0", 2, start=40.0, ttft=0.5),
    ]
    stages = [{"name": "ramp", "measured": False}, {"name": "steady", "measured": True}]
    found = classes(tmp_path, rows, scenario={"stages": stages})
    assert found[ALL].turns == 1
    assert found["tool"].ttft_s.max == 0.5


def test_cache_hit_is_a_ratio_of_sums_and_eligible_hit_knows_the_turn_before(
    tmp_path: Path,
) -> None:
    rows = [
        planted.turn("s0", 0, prompt_tokens=1000, cached_tokens=100, output_tokens=200),
        planted.turn("s0", 1, start=30.0, prompt_tokens=1500, cached_tokens=900, output_tokens=100),
        planted.turn(  # the turn with index 2 is missing: nothing is known to be eligible
            "s0", 3, start=50.0, prompt_tokens=2500, cached_tokens=500, output_tokens=100
        ),
    ]
    found = classes(tmp_path, rows)
    assert found["tool"].cache_hit == Sourced(1400 / 4000, "usage")
    assert found["tool"].eligible_hit == pytest.approx(900 / 1200)
    assert found["cold"].eligible_hit is None


def test_without_usage_the_hit_comes_from_counters_for_all_turns_only(tmp_path: Path) -> None:
    scrape = [
        planted.gauge(t, f"vllm:prefix_cache_{name}_total", value)
        for t, name, value in [
            (0.0, "queries", 1000.0),
            (0.0, "hits", 100.0),
            (12.0, "queries", 5000.0),
            (12.0, "hits", 3100.0),
        ]
    ]
    found = classes(tmp_path, [planted.turn("s0", 0)], scrape=scrape)
    assert found[ALL].cache_hit == Sourced(0.75, "metrics counters")
    assert found["cold"].cache_hit == Sourced(None, None)


def test_goodput_counts_failures_as_missed_and_passes_what_a_turn_does_not_have(
    tmp_path: Path,
) -> None:
    slos = {"tool": {"ttft_s": 1.0, "tpot_s": 0.03}, "cold": None}
    rows = [
        planted.turn("s0", 0, ttft=50.0),  # cold: no limits, not judged
        planted.turn("s0", 1, ttft=1.0),  # at the limit
        planted.turn("s0", 2, ttft=1.1),
        planted.turn("s0", 3, ttft=0.5, decode=9.0),  # TPOT 0.09
        planted.turn("s0", 4, ttft=0.5, output_tokens=1, decode=0.0),  # has no TPOT
        planted.failed("s0", 5, "timeout_total"),
        planted.turn("s0", 6, ttft=0.5, status="aborted"),
    ]
    found = classes(tmp_path, rows, scenario={"slos": slos}, measured_to_s=40.0)[ALL]
    assert found.slo_share_of_all == pytest.approx(2 / 5)
    assert found.slo_share_of_successes == pytest.approx(2 / 4)
    assert found.goodput_per_s == pytest.approx(2 / 40)
    assert (found.successes, found.errors, found.aborted) == (5, 1, 1)


def test_without_limits_there_is_no_goodput(tmp_path: Path) -> None:
    found = classes(tmp_path, [planted.turn("s0", 0)], scenario={"slos": {}})[ALL]
    assert (found.goodput_per_s, found.slo_share_of_all) == (None, None)


def test_lag_makes_the_effective_latency_longer_not_the_plain_one(tmp_path: Path) -> None:
    row = planted.turn("s0", 0, intended_start_s=9.0, lag_s=1.0, ttft=0.5)
    found = classes(tmp_path, [row])[ALL]
    assert found.ttft_s.mean == pytest.approx(0.5)
    assert found.effective_ttft_s.mean == pytest.approx(1.5)
    assert found.lag_s.mean == pytest.approx(1.0)


def test_stalls_are_counted_per_token_of_the_turns_that_were_judged(tmp_path: Path) -> None:
    rows = [planted.turn("s0", 0, output_tokens=100), planted.turn("s1", 0, output_tokens=50)]
    hit = planted.trace(rows[0], [20_000] * 50 + [500_000])
    found = classes(tmp_path, rows, [hit, planted.trace(rows[1], [20_000] * 30)])[ALL]
    assert found.stall_count == 1
    assert found.stalled_turn_share == pytest.approx(0.5)
    assert found.stall_s_per_1k_tokens == pytest.approx(0.5 * 1000 / 150)
    assert found.itl_s.n == 81


def test_runs_of_one_arm_are_pooled_not_averaged(tmp_path: Path) -> None:
    folders = []
    for n, ttfts in enumerate([[0.1] * 18, [3.0, 4.0]]):
        rows = [planted.turn(f"s{i}", 1, ttft=t) for i, t in enumerate(ttfts)]
        folders.append(planted.write_run(tmp_path / str(n), rows, measured_to_s=100.0))
    results = analyse(folders)
    (arm,) = results.arms
    found = arm.of_class("tool")
    assert found is not None
    assert found.ttft_s.p95 == pytest.approx(3.05)
    assert arm.arm.seconds == 200.0
    assert results.comparison is None
