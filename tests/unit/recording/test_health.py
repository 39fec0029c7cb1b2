"""Lateness of the load generator, and the verdict on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentload.recording.health import SAMPLE_EVERY_S, CpuShare, LoopLag, throttled_periods
from agentload.recording.verdict import Evidence, judge

MS = 1_000_000
STEP_NS = round(SAMPLE_EVERY_S * 1e9)


def lag_after(*lags_ms: float) -> tuple[LoopLag, int]:
    lag, now = LoopLag(), 0
    for late_ms in lags_ms:
        lag.sleeping(now)
        now += STEP_NS + round(late_ms * MS)
        lag.woke(now)
    lag.sleeping(now)
    return lag, now


def test_lateness_is_what_a_sleep_took_beyond_its_length() -> None:
    lag, _ = lag_after(1, 2, 3, 30)
    assert lag.take_second() == (pytest.approx(0.0025), pytest.approx(0.030))
    assert lag.take_second() == (None, None)


def test_the_p99_of_the_run_is_the_edge_of_its_bucket() -> None:
    lag, _ = lag_after(*[1.1] * 98, 5.1, 5.1)
    assert lag.whole_run.quantile_s(0.99) == pytest.approx(0.00525)
    assert lag.whole_run.quantile_s(0.5) == pytest.approx(0.00125)
    assert LoopLag().whole_run.quantile_s(0.99) is None


def test_freezes_are_kept_with_the_one_going_on() -> None:
    lag, now = lag_after(1, 50, 1)
    start = STEP_NS + 1 * MS + STEP_NS
    assert lag.freezes_since(0, now) == [(start, start + 50 * MS)]
    assert lag.freezes_since(start + 50 * MS, now) == []
    # the sampler should have woken at now + step, and it is 100 ms later
    going_on = lag.freezes_since(now, now + STEP_NS + 100 * MS)
    assert going_on == [(now + STEP_NS, now + STEP_NS + 100 * MS)]


def test_the_cpu_share_needs_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.0, 1.25])
    monkeypatch.setattr("agentload.recording.health.process_cpu_s", lambda: next(readings))
    cpu = CpuShare()
    assert cpu.take(0) == 0.0
    assert cpu.take(1_000 * MS) == pytest.approx(0.25)


def test_throttling_is_read_from_either_kind_of_cgroup(tmp_path: Path) -> None:
    nowhere = tmp_path / "no-groups"
    assert throttled_periods(tmp_path, nowhere) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.stat").write_text("nr_periods 5\nnr_throttled 3\n")
    assert throttled_periods(tmp_path, nowhere) == 3
    (tmp_path / "cpu.stat").write_text("usage_usec 1\nnr_throttled 7\nthrottled_usec 9\n")
    assert throttled_periods(tmp_path, nowhere) == 7
    (tmp_path / "cpu.stat").write_text("nr_throttled many\n")
    assert throttled_periods(tmp_path, nowhere) == 3


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("0::/a/b", "a/b"),
        ("3:cpu,cpuacct:/slice", "cpu,cpuacct/slice"),
        ("3:cpuacct,cpu:/slice", "cpu/slice"),
        ("1:cpu:/", "cpu"),
    ],
)
def test_throttling_is_that_of_the_group_the_process_is_in(
    tmp_path: Path, line: str, folder: str
) -> None:
    own = tmp_path / "own"
    own.write_text(f"9:name=systemd:/x\n{line}\n5:cpuset:/y\n")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "cpu.stat").write_text("nr_throttled 11\n")
    assert throttled_periods(tmp_path, own) == 11
    own.write_text(f"{line[: line.rindex(':')]}:/../other\n")
    assert throttled_periods(tmp_path / folder, own) == 11  # as in a container


CLEAN = Evidence(
    loop_lag_p99_s=0.002,
    shortest_gap_s=0.02,
    chunks=100_000,
    late_merged_chunks=100,
    busy_seconds_share=0.1,
    throttled_periods=0,
    clock_offset_error_s=0.001,
    planned_s=600.0,
    ended_s=600.0,
    turns_recorded=500,
)


def test_a_clean_run_is_valid() -> None:
    assert judge(CLEAN).level == "valid"
    assert judge(CLEAN).reasons == ()


@pytest.mark.parametrize(
    ("change", "level", "reason"),
    [
        ({"rows_lost": 2}, "invalid", "2 turns were sent but are not in turns.csv"),
        ({"rows_refused": 3}, "invalid", "3 rows could not be written"),
        ({"workers_lost": ("w1 at 45 s",)}, "invalid", "worker lost: w1 at 45 s"),
        ({"workers_changed": ("w3 left at 9 s",)}, "invalid", "w3 left"),
        ({"workers_joined": ("joined at 9 s: w3",)}, "suspect", "got no users, the others bore"),
        ({"listener_errors": 1}, "invalid", "inside the recording"),
        ({"ended_s": 143.0}, "invalid", "24% of its planned 600 s"),
        ({"turns_recorded": 0}, "invalid", "no turn was recorded"),
        ({"loop_lag_p99_s": 0.0101, "user_stamped_chunks": 7}, "suspect", "10.1 ms (P99)"),
        ({"late_merged_chunks": 101}, "suspect", "the reader came late"),
        ({"busy_seconds_share": 0.11}, "suspect", "add workers"),
        ({"orphans": ("x of run r0",)}, "suspect", "another run loaded beside this one"),
        ({"owner_stood_still_s": 12.04}, "suspect", "stood still for 12.0 s"),
        ({"throttled_periods": 4}, "suspect", "quota stopped a worker 4 times"),
        ({"clock_offset_error_s": 0.0051}, "suspect", "5.1 ms only"),
        ({"clock_offset_unknown": ("w2",)}, "suspect", "w2 not measured"),
        ({"simulator_late_share": 0.011}, "suspect", "1.1% of its chunks more than 5 ms late"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], level: str, reason: str) -> None:
    judgement = judge(replace(CLEAN, **change))  # type: ignore[arg-type]
    assert judgement.level == level
    assert len(judgement.reasons) == 1
    assert reason in judgement.reasons[0]


def test_a_simulator_within_what_it_promises_is_no_fault() -> None:
    assert judge(replace(CLEAN, simulator_late_share=0.01)).level == "valid"


def test_a_late_loop_does_not_spoil_kernel_stamps() -> None:
    assert judge(replace(CLEAN, loop_lag_p99_s=0.2)).level == "valid"


def test_what_was_not_measured_accuses_nobody() -> None:
    unknown = Evidence(turns_recorded=1)
    assert judge(unknown).level == "valid"


def test_a_run_without_a_plan_may_end_at_any_time() -> None:
    assert judge(replace(CLEAN, planned_s=None, ended_s=3.0)).level == "valid"
