"""The page for Prometheus, read by the official OpenMetrics parser."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agentload.client import errors
from agentload.live.openmetrics import ERROR_CLASSES, exposition, known_error_class
from agentload.live.snapshot import (
    ClassFigures,
    LatencyFigures,
    LoadFigures,
    Point,
    ServerFigures,
    Snapshot,
)

TOOL = ClassFigures(
    turn_class="tool",
    arm='a "b"\\c\nd',
    turns=16,
    successes=12,
    errors=3,
    aborted=1,
    implausible=2,
    errors_by_class={"timeout_read": 1, "http_503": 1, "<script> 17": 1},
    ttft=LatencyFigures(10, p50_s=0.25, p90_s=None, p99_s=None, max_s=0.5, sum_s=3.5),
    output_tokens=300,
    prompt_tokens=1000,
    cached_tokens=900,
    cache_hit_ratio=0.9,
    slo_judged=15,
    slo_good=12,
    slo_share=0.8,
)
ALL = ClassFigures(
    turn_class="all",
    arm=TOOL.arm,
    turns=16,
    successes=12,
    ttft=TOOL.ttft,
    cache_hit_ratio=0.9,
    output_tokens=300,
    slo_judged=15,
    slo_share=0.8,
)


def snapshot(**given: Any) -> Snapshot:
    values: dict[str, Any] = {
        "run_id": "20260101T000000Z-ab12-demo",
        "run_dir": "/secret/place",
        "arm": TOOL.arm,
        "scenario": "demo",
        "model": "m",
        "state": "running",
        "now_s": 30.0,
        "stage": "high",
        "measured_s": 12.5,
        "eta_s": None,
        "planned_s": None,
        "users": 0,
        "target_users": 4,
        "in_flight": 2,
        "recorded": 40,
        "load": LoadFigures(),
        "classes": (TOOL, ALL),
    }
    return Snapshot(**(values | given))


def samples(shown: Snapshot | None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Value by sample name and sorted labels; the parser refuses what is no OpenMetrics."""
    found = {}
    for family in text_string_to_metric_families(exposition(shown).decode()):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def named(shown: Snapshot, name: str, **labels: str) -> list[float]:
    wanted = labels.items()
    found = samples(shown).items()
    return [v for (n, had), v in found if n == name and wanted <= dict(had).items()]


def test_counts_and_times_have_their_names_units_and_labels() -> None:
    found = samples(snapshot())
    label = ("arm", TOOL.arm)
    tool = (label, ("turn_class", "tool"))
    assert found["agentload_turns_total", (label, ("status", "error"), tool[1])] == 3
    assert found["agentload_turns_total", (label, ("status", "success"), tool[1])] == 12
    assert found["agentload_ttft_seconds", (label, ("quantile", "0.5"), tool[1])] == 0.25
    assert found["agentload_ttft_seconds", (label, ("quantile", "1"), tool[1])] == 0.5
    assert found["agentload_ttft_seconds_count", tool] == 10
    assert found["agentload_ttft_seconds_sum", tool] == 3.5
    assert found["agentload_output_tokens_total", tool] == 300
    assert found["agentload_cache_hit_ratio", tool] == 0.9
    assert found["agentload_goodput_ratio", tool] == 0.8
    assert found["agentload_slo_good_turns_total", tool] == 12


def test_what_was_not_measured_has_no_sample() -> None:
    bare = ClassFigures("cold", "base")
    names = {name for name, _ in samples(snapshot(classes=(bare,)))}
    unmeasured = ("ttft", "itl", "eta", "loop_lag", "cpu_ratio", "rows_lost", "verdict", "recent")
    unmeasured += ("server", "cache_hit", "goodput", "slo", "prompt", "cached", "stalls", "errors")
    for start in unmeasured:
        assert not [n for n in names if n.startswith(f"agentload_{start}")], start
    assert "agentload_users" in names  # nobody is there: that is measured
    assert named(snapshot(), "agentload_ttft_seconds", quantile="0.99") == []


def test_what_was_measured_late_has_a_sample_then() -> None:
    load = LoadFigures(level="suspect", loop_lag_p99_s=0.002, cpu_share=0.4, rows_lost=0)
    server = ServerFigures(running=3.0, waiting=0.0, kv_usage=0.5, preemptions=1.0)
    late = snapshot(load=load, server=server, eta_s=60.0)
    assert named(late, "agentload_rows_lost_total") == [0]
    assert named(late, "agentload_loop_lag_seconds") == [0.002]
    assert named(late, "agentload_eta_seconds") == [60]
    assert named(late, "agentload_server_waiting_requests") == [0]
    assert named(late, "agentload_server_preemptions_total") == [1]
    assert named(late, "agentload_verdict", agentload_verdict="suspect") == [1]
    assert named(late, "agentload_verdict", agentload_verdict="valid") == [0]


def test_counters_have_no_group_of_classes_so_that_their_sum_is_right() -> None:
    for (name, labels), _ in samples(snapshot()).items():
        if name.endswith(("_total", "_count", "_sum")):
            assert ("turn_class", "all") not in labels, name


def test_the_last_minute_is_shown_while_a_run_goes_on_only() -> None:
    point = Point(30.0, 4, 2, ttft_p50_s=0.1, itl_p99_s=0.04)
    going = snapshot(history=(Point(29.0, 4, 2, ttft_p50_s=9.0), point))
    assert named(going, "agentload_recent_ttft_seconds", quantile="0.5") == [0.1]
    assert named(going, "agentload_recent_itl_seconds", quantile="0.99") == [0.04]
    over = snapshot(history=(point,), state="complete")
    assert named(over, "agentload_recent_ttft_seconds") == []


def test_error_classes_are_a_closed_set() -> None:
    shown = snapshot()
    assert named(shown, "agentload_errors_total", error_class="timeout_read") == [1]
    assert named(shown, "agentload_errors_total", error_class="http_503") == [1]
    assert named(shown, "agentload_errors_total", error_class="other") == [1]
    assert len(named(shown, "agentload_errors_total")) == 3
    assert known_error_class("http_5030") == "other"


def test_the_closed_set_has_every_class_of_the_client() -> None:
    mended = {name for name in errors.MENDS if not name.startswith("http_")}
    assert mended <= ERROR_CLASSES
    assert set(errors._HTTPX_CLASSES.values()) <= ERROR_CLASSES


def test_no_path_of_this_machine_is_told() -> None:
    assert b"/secret/place" not in exposition(snapshot())


@pytest.mark.parametrize("shown", [None, snapshot(classes=())], ids=["no run yet", "no turn yet"])
def test_a_page_without_figures_is_one_too(shown: Snapshot | None) -> None:
    assert exposition(shown).endswith(b"# EOF\n")
    samples(shown)
