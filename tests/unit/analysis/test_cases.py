"""Troubles from public bug reports: the values of tests/cases, kinds C, D and E."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
import yaml

from agentload.recording.metrics_page import samples
from analysis.compare_command import main as compare
from analysis.csv_rows import Column, ReadReport
from analysis.csv_table import read_table
from analysis.diagnosis.cache import reusable_tokens
from analysis.diagnosis.validity import arm_is_valid
from analysis.distribution import distribution
from analysis.faults import FaultLog
from analysis.gap_histogram import GapHistogram
from analysis.locust_csv import load_history, load_stats
from analysis.measured import measure
from analysis.metrics import ALL, arms_of, class_figures
from analysis.pressure import pressure
from analysis.report.command import NO_DATA
from analysis.report.command import main as report
from analysis.server import Scrape, scrape_of
from analysis.sessions import session_figures
from analysis.windows import WorkerState, degradation

CASES = Path(__file__).parents[2] / "cases"


def case(name: str) -> dict[str, Any]:
    (path,) = CASES.glob(f"{name}-*.yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def check(found: Mapping[str, Any], of: Mapping[str, Any]) -> None:
    """Every expected value, within the case's tolerance; and none of the known wrong results."""
    expected, tolerance = of["expected"]["values"], of["expected"]["tolerance"]
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key] == approximately(value, tolerance), key
    for wrong in of.get("wrong", []):
        shared = {k: v for k, v in wrong["values"].items() if k in found}
        assert not shared or any(found[k] != approximately(v, tolerance) for k, v in shared.items())


def approximately(value: Any, tolerance: float) -> Any:
    if isinstance(value, list):
        return [approximately(v, tolerance) for v in value]
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return pytest.approx(value, abs=tolerance)
    return value


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def turns_of(text: str) -> list[Any]:
    """The case's requests as turns of a run folder."""
    found = []
    for i, row in enumerate(rows_of(text)):
        start = float(row.get("start_ts") or 10.0)
        ttft = float(row["ttft_s"]) if row.get("ttft_s") else None
        e2e = float(row["e2e_s"]) if row.get("e2e_s") else None
        if row.get("last_token_ts"):
            e2e = float(row["last_token_ts"])  # of the request's own clock
        index = int(row["turn"]) - 1 if "turn" in row else i
        fields: dict[str, Any] = {
            "start": start,
            "ttft": ttft,
            "decode": 0.0 if ttft is None or e2e is None else e2e - ttft,
            "request_id": row.get("request_id") or f"r{i}",
            "turn_class": "tool",
            "output_tokens": int(row["output_tokens"]) if row.get("output_tokens") else 1,
            "worker_id": row.get("worker") or "w0",
        }
        session = row.get("session_id") or "s0"
        if row["outcome"] == "success":
            found.append(planted.turn(session, index, **fields))
        else:
            found.append(planted.failed(session, index, row["error"], **fields))
    return found


def figures_of(tmp_path: Path, text: str, **manifest: Any) -> Any:
    measured = measure(planted.write_run(tmp_path / "run", turns_of(text), **manifest))
    return measured, class_figures(arms_of([measured])[0])[-1]


def scrape(scrapes: Iterable[Mapping[str, Any]]) -> Scrape:
    pages = ((s["t"], s["text"]) for s in scrapes)
    return scrape_of(row for t, text in pages for row in samples(text, "http://h/metrics", t))


# -- C: Locust ----------------------------------------------------------------------------------


def test_c01_locust_percentiles_are_cut_at_the_maximum(tmp_path: Path) -> None:
    of = case("C01")
    path = tmp_path / "run_stats.csv"
    path.write_text(of["input"]["files"]["run_stats.csv"], encoding="utf-8")
    (row,) = load_stats(path).rows
    raw = rows_of(of["input"]["files"]["run_stats.csv"])[0]
    times = np.array(of["input"]["exact_response_times_ms"], dtype=float)
    assert row.percentiles_ms["99%"] != float(raw["99%"])
    exact = {q: float(np.quantile(times, q)) for q in (0.5, 0.99)}
    few = distribution(times)
    assert (few.p50, few.p99) == (exact[0.5], None)  # four records have no P99 to show
    check(
        {
            "exact_p50_ms": few.p50,
            "exact_p99_ms": exact[0.99],
            "max_ms": few.max,
            "mean_ms": few.mean,
            "locust_p50_ms": row.percentiles_ms["50%"],
            "locust_median_ms": float(raw["Median Response Time"]),
            "locust_p99_ms": float(raw["99%"]),
            "shown_from_csv_only_p99_ms": row.percentiles_ms["99%"],
        },
        of,
    )


def test_c02_na_in_the_history_is_a_missing_value(tmp_path: Path) -> None:
    of = case("C02")
    path = tmp_path / "run_stats_history.csv"
    path.write_text(of["input"]["files"]["run_stats_history.csv"], encoding="utf-8")
    history = load_history(path)
    last = history.iloc[-1]
    check(
        {
            "rows": len(history),
            "rows_with_latency": int(history["95%"].notna().sum()),
            "peak_users": int(history["User Count"].max()),
            "last_p95_ms": float(last["95%"]),
            "total_requests": int(last["Total Request Count"]),
            "total_failures": int(last["Total Failure Count"]),
            "p95_column_is_numeric": history["95%"].dtype == np.float64,
        },
        of,
    )


def test_c03_only_rows_of_real_requests_are_added(tmp_path: Path) -> None:
    of = case("C03")
    path = tmp_path / "run_stats.csv"
    path.write_text(of["input"]["files"]["run_stats.csv"], encoding="utf-8")
    stats = load_stats(path)
    assert stats.custom_rows == ("TTFT ttft", "ITL gap")
    check(
        {
            "requests": stats.requests,
            "failures": stats.failures,
            "failure_rate": stats.failure_rate,
            "rps": stats.requests_per_s,
            "p95_ms": stats.rows[0].percentiles_ms["95%"],
        },
        of,
    )


def test_c05_impossible_decode_speed_is_left_out(tmp_path: Path) -> None:
    of = case("C05")
    measured, row = figures_of(tmp_path, of["input"]["files"]["requests.csv"])
    turns = measured.turns
    check(
        {
            "implausible": list(turns["request_id"][turns["implausible"]]),
            "tokens_per_s": list(turns["tokens_per_s"]),
            "mean_tokens_per_s_used": row.decode_tokens_per_s,
        },
        of,
    )
    assert row.implausible == 1


def test_c06_missing_workers_make_stretches_unusable() -> None:
    of = case("C06")
    given = of["input"]
    events = [WorkerState(e["t"], e["worker"], e["state"], e["users"]) for e in given["events"]]
    found = degradation(events, given["target_users"], given["run_s"])
    check(
        {
            "degraded_intervals_s": [list(i) for i in found.intervals_s],
            "degraded_seconds": found.seconds,
            "min_users": found.min_users,
            "usable_seconds": given["run_s"] - found.seconds,
        },
        of,
    )


def test_c08_starts_that_were_due_are_counted_and_their_lateness_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = case("C08")
    given = of["input"]
    service_s, end_s = given["service_time_s"], given["window_s"]
    due_s = [float(t) for t in np.arange(0.0, end_s, given["pacing_s"])]
    called_s, free_s = [], 0.0
    for at_s in due_s:  # one user, which takes the next start when it is free
        called_s.append(max(at_s, free_s))
        free_s = called_s[-1] + service_s
    sent = [(d, c) for d, c in zip(due_s, called_s, strict=True) if c < end_s]
    rows = [
        planted.turn(f"s{i}", 0, start=c, intended_start_s=d, lag_s=c - d, ttft=5.0,
                     decode=service_s - 5.0)
        for i, (d, c) in enumerate(sent)
    ]  # fmt: skip
    folder = planted.write_run(
        tmp_path / "run",
        [*rows, planted.turn("x1-000000", 0, start=20.0)],  # a prompt that interferes is no start
        measured_from_s=0.0,
        measured_to_s=end_s,
        scenario={"arrivals": {"population": "open", "cv": 1.0}},
        counts={"planned": len(due_s), "sent": len(sent), "dropped": len(due_s) - len(sent)},
    )
    assert report([str(folder), "--format", "json"]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    found = arm["starts"]
    assert found["planned_per_s"] == pytest.approx(0.1)
    assert found["overloaded"] is True
    measured = measure(folder)
    lateness = measured.turns["lag_s"].to_numpy()[:-1]
    n = found["e2e_s"]["n"]
    assert n == len(rows) + 1
    check(
        {
            "planned_starts": found["planned"],
            "achieved_starts": found["achieved"],
            "achieved_rate_per_s": found["achieved_per_s"],
            "lateness_s": list(lateness),
            "measured_mean_latency_s": (found["e2e_s"]["mean"] * n - 2.5) / (n - 1),
            "mean_latency_with_lateness_s": (found["effective_e2e_s"]["mean"] * n - 2.5) / (n - 1),
        },
        of,
    )
    assert found["effective_ttft_s"]["mean"] == pytest.approx((4 * (5.0 + 7.5) + 0.5) / 5)
    assert report([str(folder), "--format", "md"]) == 0
    assert "| overloaded |" in capsys.readouterr().out
    assert compare([str(folder), str(folder)]) == 0
    assert "4 of 6 planned session starts" in capsys.readouterr().out


# -- D: measurement and analysis ----------------------------------------------------------------


def test_d01_tpot_is_per_turn_and_itl_per_gap(tmp_path: Path) -> None:
    of = case("D01")
    measured, row = figures_of(tmp_path, of["input"]["files"]["requests.csv"])
    gaps = GapHistogram()
    for turn in measured.turns.itertuples():
        count = int(turn.output_tokens) - 1
        gaps.add(np.full(count, round((turn.last_chunk_s - turn.first_chunk_s) / count * 1e6)))
    found = {"mean_tpot_s": row.tpot_s.mean, "mean_itl_s": gaps.mean(), "gaps": gaps.count}
    check(found, of)


def test_d02_percentiles_come_from_pooled_records(tmp_path: Path) -> None:
    of = case("D02")
    files = of["input"]["files"]
    names = ("requests-w1.csv", "requests-w2.csv")
    parts = [np.array([float(r["ttft_s"]) for r in rows_of(files[n])]) for n in names]
    text = files[names[0]] + "\n".join(files[names[1]].splitlines()[1:])
    _, row = figures_of(tmp_path, text)
    found = [float(np.quantile(p, 0.95)) for p in parts]
    check(
        {
            "pooled_p95_s": row.ttft_s.p95,
            "p95_w1_s": found[0],
            "p95_w2_s": found[1],
            "count": row.ttft_s.n,
        },
        of,
    )


def test_d03_the_warm_up_is_cut_and_counted(tmp_path: Path) -> None:
    of = case("D03")
    measured, row = figures_of(
        tmp_path, of["input"]["files"]["requests.csv"], measured_from_s=of["input"]["warmup_s"]
    )
    check(
        {
            "used": row.ttft_s.n,
            "cut": measured.window.cut_before,
            "mean_ttft_s": row.ttft_s.mean,
            "p50_ttft_s": row.ttft_s.p50,
            "max_ttft_s": row.ttft_s.max,
        },
        of,
    )


def test_d04_few_samples_have_no_tail(tmp_path: Path) -> None:
    of = case("D04")
    _, eight = figures_of(tmp_path / "a", of["input"]["files"]["requests.csv"])
    _, one = figures_of(tmp_path / "b", of["input"]["files"]["single.csv"])
    check(
        {
            "count": eight.ttft_s.n,
            "p50_s": eight.ttft_s.p50,
            "p90_s": eight.ttft_s.p90,
            "p95_s": eight.ttft_s.p95,
            "p99_s": eight.ttft_s.p99,
            "max_s": eight.ttft_s.max,
            "single_count": one.ttft_s.n,
            "single_p50_s": one.ttft_s.p50,
            "single_p95_s": one.ttft_s.p95,
        },
        of,
    )


SMALL = (
    Column("request_id", "text", required=True),
    Column("outcome", "text", required=True),
    Column("ttft_s", "float"),
)


def read_small(path: Path) -> Any:
    log = FaultLog()
    frame = read_table(path, SMALL, log, ReadReport())
    log.raise_if_any()
    return frame


def test_d05_empty_and_tiny_files_are_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = case("D05")
    found = []
    for name, text in of["input"]["files"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found.append(distribution(read_small(tmp_path / name)["ttft_s"].to_numpy()))
    folder = planted.write_run(tmp_path / "run", [])
    (folder / "turns.csv").write_text("", encoding="utf-8")
    code = report([str(folder)])
    assert "no turn was measured" in capsys.readouterr().err
    summary = (folder / "summary.json").read_text(encoding="utf-8")
    assert json.loads(summary)["has_data"] is False
    assert "NaN" not in summary
    assert (folder / "report.html").stat().st_size > 1000
    check(
        {
            "counts": [d.n for d in found],
            "mean_ttft_s": [d.mean for d in found],
            "std_ttft_s": [d.std for d in found],
            "exit_code_is_zero": code == 0,
        },
        of,
    )
    assert code == NO_DATA


def test_d06_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    of = case("D06")
    text = of["input"]["files"]["requests.csv"]["py"]
    raw = text.encode("ascii").decode("unicode_escape").encode("latin-1")
    (tmp_path / "requests.csv").write_bytes(raw)
    frame = read_small(tmp_path / "requests.csv")
    check(
        {
            "columns": [c for c in frame.columns if c != "file_row"],
            "rows": len(frame),
            "mean_ttft_s": float(frame["ttft_s"].mean()),
        },
        of,
    )


def test_d07_failures_are_in_the_share_not_in_the_latency(tmp_path: Path) -> None:
    of = case("D07")
    slos = {"tool": {"ttft_s": of["input"]["slo_ttft_s"]}}
    _, row = figures_of(tmp_path, of["input"]["files"]["requests.csv"], scenario={"slos": slos})
    assert row.errors_by_class == {"rate_limited": 6}
    check(
        {
            "successes": row.successes,
            "errors": row.errors,
            "error_rate": row.error_rate,
            "p50_ttft_s": row.ttft_s.p50,
            "p50_e2e_s": row.e2e_s.p50,
            "slo_share_of_successes": row.slo_share_of_successes,
            "slo_share_of_all": row.slo_share_of_all,
        },
        of,
    )


def test_d08_five_spellings_of_the_prefix_cache() -> None:
    of = case("D08")
    rates = [scrape(s["scrapes"]).hit_rate() for s in of["input"]["sets"]]
    check(
        {
            "hit_rates": [None if r is None else r.rate for r in rates],
            "from_gauge": [r is not None and r.from_gauge for r in rates],
        },
        of,
    )


def test_d09_a_restart_is_seen_and_counted() -> None:
    of = case("D09")
    found = scrape(of["input"]["scrapes"])
    rate = found.hit_rate()
    assert rate is not None
    names = ("prefix_cache_queries", "prefix_cache_hits", "generation_tokens")
    queries, hits, tokens = (found.increase(name) for name in names)
    assert queries is not None
    assert hits is not None
    assert tokens is not None
    check(
        {
            "queries_increase": queries.amount,
            "hits_increase": hits.amount,
            "generation_tokens_increase": tokens.amount,
            "resets": found.restarts(),
            "hit_rate": rate.rate,
        },
        of,
    )


def test_d10_engines_are_added_before_a_ratio_is_formed() -> None:
    of = case("D10")
    found = scrape(of["input"]["scrapes"])
    rate, running, usage = found.hit_rate(), found.total("running"), found.spread("kv_usage")
    assert rate is not None
    assert running is not None
    assert usage is not None
    check(
        {
            "hit_rate": rate.rate,
            "engine_hit_rates": list(rate.by_engine),
            "kv_usage_mean": float(usage[1].mean()),
            "kv_usage_max": float(usage[2].max()),
            "requests_running": float(running[1][-1]),
        },
        of,
    )


def test_d11_above_the_last_bound_is_only_a_bound() -> None:
    of = case("D11")
    histogram = scrape(of["input"]["scrapes"]).histogram("ttft")
    assert histogram is not None
    found = {q: histogram.quantile(q) for q in (0.5, 0.75, 0.9, 0.99)}
    assert all(found.values())
    check(
        {
            "p50_s": found[0.5].value_s,
            "p75_s": found[0.75].value_s,
            "p90_s": found[0.9].value_s,
            "p99_at_least_s": found[0.99].value_s,
            "p99_is_bound": found[0.99].is_bound,
            "mean_s": histogram.mean_s,
            "count": histogram.count,
        },
        of,
    )


# -- E: vLLM under long sessions ----------------------------------------------------------------


def test_e03_whole_blocks_before_the_first_difference_are_reusable() -> None:
    of = case("E03")
    given = of["input"]
    found = [
        reusable_tokens(given["prompt_tokens"], at, given["block_size"])
        for at in given["first_difference_at"]
    ]
    check(
        {
            "cached_tokens": found,
            "hit_rate_of_second_request": [n / given["prompt_tokens"] for n in found],
        },
        of,
    )


def test_e04_first_turns_that_hit_make_an_arm_invalid() -> None:
    of = case("E04")
    given = of["input"]
    rates = [scrape(arm["scrapes"]).hit_rate() for arm in given["arms"]]
    hits = [r.rate for r in rates if r is not None]
    bounds = (given["expected_shared_fraction"], given["max_excess"])
    check(
        {
            "first_turn_hit_rate": hits,
            "arm_valid": [arm_is_valid(hit, *bounds) for hit in hits],
        },
        of,
    )


def test_e05_a_preemption_storm_is_over_the_memory_limit() -> None:
    of = case("E05")
    found = pressure(scrape(of["input"]["scrapes"]), {}, None)
    assert found.limit == "memory"
    check(
        {
            "preemptions": found.preemptions,
            "finished": found.finished,
            "preemptions_per_100": found.preemptions_per_100,
            "over_memory_limit": found.over_memory_limit,
        },
        of,
    )


def test_e06_waiting_with_an_empty_cache_is_the_admission_limit() -> None:
    of = case("E06")
    given = of["input"]
    settings = {
        "max_num_seqs": given["max_num_seqs"],
        "kv_cache_size_tokens": given["kv_cache_tokens"],
    }
    found = pressure(scrape(given["scrapes"]), settings, given["tokens_per_session"])
    check(
        {
            "limit": found.limit,
            "mean_waiting": found.waiting_mean,
            "max_kv_usage": found.kv_usage_max,
            "sessions_that_fit_in_kv": found.sessions_that_fit,
        },
        of,
    )


def test_e07_turns_with_too_few_sessions_have_no_figures(tmp_path: Path) -> None:
    of = case("E07")
    given = of["input"]
    measured, row = figures_of(tmp_path, given["files"]["turns.csv"])
    assert row.turn_class == ALL
    turns = arms_of([measured])[0].turns()
    turns["turn_index"] += 1  # the case counts from 1
    found = session_figures(turns, given["planned_turns"], given["min_sessions_per_turn"])
    check(
        {
            "sessions_by_turn": [t.sessions for t in found.by_turn],
            "deepest_turn": found.deepest_turn,
            "completed_sessions": found.completed,
            "turns_with_statistics": sum(t.mean_ttft_s is not None for t in found.by_turn),
            "mean_ttft_turn_4_s": found.by_turn[3].mean_ttft_s,
        },
        of,
    )
