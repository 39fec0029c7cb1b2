"""What is near the cases of tests/cases: the same kind of trouble in another shape."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

from agentload.recording.metrics_page import samples
from analysis.diagnosis.cache import reusable_tokens
from analysis.diagnosis.validity import arm_is_valid
from analysis.measured import measure
from analysis.metrics import arms_of, class_figures
from analysis.pressure import pressure
from analysis.report.command import NO_DATA
from analysis.report.command import main as report
from analysis.server import Scrape, scrape_of
from analysis.sessions import session_figures


def scrape(*pages: tuple[float, dict[str, float]], host: str = "h") -> Scrape:
    """Pages of vLLM's metrics: time and, of each series, its value."""
    texts = ((t, "".join(f"{k} {v}\n" for k, v in page.items())) for t, page in pages)
    return scrape_of(s for t, text in texts for s in samples(text, f"http://{host}/metrics", t))


def figures(folder: Path, turns: list[Any], **manifest: Any) -> Any:
    measured = measure(planted.write_run(folder, turns, **manifest))
    return measured, class_figures(arms_of([measured])[0])[-1]


QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
START = "process_start_time_seconds"


def test_d01_an_answer_of_one_token_has_no_tpot(tmp_path: Path) -> None:
    short = planted.turn("s0", 1, decode=0.0, output_tokens=1, output_chunks=1)
    long = planted.turn("s1", 1, decode=3.0, output_tokens=31)
    _, row = figures(tmp_path / "run", [short, long])
    assert (row.tpot_s.n, row.tpot_s.mean) == (1, pytest.approx(0.1))
    assert row.ttft_s.n == 2


def test_d02_a_worker_of_few_turns_does_not_weigh_as_much(tmp_path: Path) -> None:
    many = [planted.turn("a", i, ttft=1.0, worker_id="w0") for i in range(99)]
    one = [planted.turn("b", 0, ttft=9.0, worker_id="w1")]
    _, row = figures(tmp_path / "run", many + one)
    assert row.ttft_s.p90 == 1.0  # 0.9 x 99 = rank 89.1; a mean over workers says 5 s
    assert row.ttft_s.mean == pytest.approx(1.08)


def test_d03_a_turn_belongs_to_where_it_began(tmp_path: Path) -> None:
    over_the_begin = planted.turn("s0", 1, start=29.9, decode=5.0)
    at_the_begin = planted.turn("s1", 1, start=30.0, ttft=1.0)
    over_the_end = planted.turn("s2", 1, start=59.9, ttft=3.0)
    after = planted.turn("s3", 1, start=60.1)
    turns = [over_the_begin, at_the_begin, over_the_end, after]
    measured, row = figures(tmp_path / "run", turns, measured_from_s=30.0, measured_to_s=60.0)
    assert (measured.window.cut_before, measured.window.cut_after) == (1, 1)
    assert (row.ttft_s.n, row.ttft_s.mean) == (2, 2.0)


@pytest.mark.parametrize(
    ("turns", "shown", "few"),
    [
        (9, ["p50"], ("p50",)),
        (10, ["p50", "p90"], ("p50", "p90")),
        (19, ["p50", "p90"], ("p50", "p90")),
        (20, ["p50", "p90", "p95"], ("p90", "p95")),
        (99, ["p50", "p90", "p95"], ("p90", "p95")),
        (100, ["p50", "p90", "p95", "p99"], ("p95", "p99")),
    ],
)
def test_d04_one_sample_more_or_less(
    tmp_path: Path, turns: int, shown: list[str], few: tuple[str, ...]
) -> None:
    _, row = figures(tmp_path / "run", [planted.turn("s", i) for i in range(turns)])
    names = ("p50", "p90", "p95", "p99")
    assert [n for n in names if getattr(row.ttft_s, n) is not None] == shown
    assert row.ttft_s.few_samples == few


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf", b"\n\n\r\n", b" "])
def test_d05_a_file_of_nothing_is_no_data_or_a_fault(tmp_path: Path, content: bytes) -> None:
    folder = planted.write_run(tmp_path / "run", [])
    (folder / "turns.csv").write_bytes(content)
    assert report([str(folder), "--format", "json"]) == (2 if content == b" " else NO_DATA)


def test_d06_quotes_a_mark_and_columns_in_another_order_do_not_matter(tmp_path: Path) -> None:
    folder = planted.write_run(tmp_path / "run", [planted.turn("s0", 1, ttft=0.25)])
    lines = (folder / "turns.csv").read_text(encoding="utf-8").splitlines()
    quoted = [",".join(f'"{cell}"' for cell in reversed(line.split(","))) for line in lines]
    (folder / "turns.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*quoted, ""]).encode())
    turns = measure(folder).turns
    assert turns["ttft_s"].tolist() == [0.25]
    assert turns["session_id"].tolist() == ["s0"]


def test_d07_fast_failures_only_are_no_latency(tmp_path: Path) -> None:
    slos = {"tool": {"ttft_s": 2.0}}
    failed = [planted.failed("s", i, "rate_limited", turn_class="tool") for i in range(1, 5)]
    cut = planted.turn("t", 1, status="error", error_class="stream_cut", ttft=0.01)
    ended = planted.turn("u", 1, status="aborted", ttft=0.01)
    _, row = figures(tmp_path / "run", [*failed, cut, ended], scenario={"slos": slos})
    assert (row.successes, row.errors, row.aborted, row.error_rate) == (0, 5, 1, 1.0)
    assert (row.ttft_s.n, row.ttft_s.p50, row.slo_share_of_all) == (0, None, 0.0)
    assert row.slo_share_of_successes is None


def test_d08_a_gauge_of_minus_one_is_no_hit_rate() -> None:
    """vLLM's old gauge says -1 where caching is off."""
    page = {"vllm:gpu_prefix_cache_hit_rate": -1.0}
    assert scrape((0.0, page), (60.0, page)).hit_rate() is None


def test_d08_counters_without_a_query_say_nothing() -> None:
    page = {QUERIES: 0.0, HITS: 0.0}
    assert scrape((0.0, page), (60.0, page)).hit_rate() is None


def test_d09_a_restart_is_seen_where_the_counter_is_past_its_old_value() -> None:
    """700 + 1900 hits of 1,000 + 2,000 queries; from the counters alone 1900 of 1000."""
    found = scrape(
        (0.0, {START: 1.7e9, QUERIES: 0.0, HITS: 0.0}),
        (60.0, {START: 1.7e9, QUERIES: 1000.0, HITS: 700.0}),
        (120.0, {START: 1.70000009e9, QUERIES: 2000.0, HITS: 1900.0}),
    )
    rate, queries = found.hit_rate(), found.increase("prefix_cache_queries")
    assert rate is not None
    assert queries is not None
    assert found.restarts() == 1
    assert queries.amount == 3000.0
    assert rate.rate == pytest.approx(2600 / 3000)


def test_d09_where_one_counter_fell_the_others_began_again_too() -> None:
    found = scrape((0.0, {QUERIES: 1000.0, HITS: 900.0}), (60.0, {QUERIES: 1200.0, HITS: 600.0}))
    rate = found.hit_rate()
    assert rate is not None
    assert found.restarts() == 1
    assert rate.rate == pytest.approx(600 / 1200)


def test_d10_servers_that_come_later_have_no_half_of_the_load() -> None:
    """A second engine without queries weighs nothing; its gauges count from when it is there."""
    both = [f'{{engine="{i}"}}' for i in (0, 1)]
    found = scrape(
        (0.0, {f"{n}{e}": 0.0 for n in (QUERIES, HITS) for e in both}),
        (60.0, {QUERIES + both[0]: 1000.0, HITS + both[0]: 900.0, QUERIES + both[1]: 0.0,
                HITS + both[1]: 0.0}),
    )  # fmt: skip
    rate = found.hit_rate()
    assert rate is not None
    assert (rate.rate, rate.by_engine) == (0.9, (0.9,))


def test_d11_servers_with_other_bounds_share_only_the_bounds_of_both() -> None:
    name = "vllm:time_to_first_token_seconds"

    def page(time_s: float, scale: float) -> tuple[float, dict[str, float]]:
        a = {"1.0": 40.0, "5.0": 80.0, "+Inf": 100.0}
        b = {"2.0": 90.0, "5.0": 100.0, "+Inf": 100.0}
        rows = {
            f'{name}_bucket{{engine="{e}",le="{le}"}}': scale * n
            for e, counts in enumerate((a, b))
            for le, n in counts.items()
        }
        return time_s, rows | {f"{name}_sum": scale * 300.0, f"{name}_count": scale * 200.0}

    histogram = scrape(page(0.0, 0.0), page(60.0, 1.0)).histogram("ttft")
    assert histogram is not None
    assert histogram.bounds_s == (5.0, math.inf)
    assert histogram.cumulative == (180.0, 200.0)
    last = histogram.quantile(0.99)
    assert last is not None
    assert (last.value_s, last.is_bound) == (5.0, True)


@pytest.mark.parametrize(
    ("prompt", "differs_at", "block", "cached"),
    [
        (15, 15, 16, 0),  # shorter than a block
        (16, 16, 16, 0),  # identical: the last token is computed, and with it its block
        (17, 17, 16, 16),
        (4096, 0, 16, 0),
        (4097, 4097, 16, 4096),
        (100_000, 99_999, 528, 99_792),  # hybrid models have blocks that are no power of 2
    ],
)
def test_e03_blocks_of_other_sizes(prompt: int, differs_at: int, block: int, cached: int) -> None:
    assert reusable_tokens(prompt, differs_at, block) == cached


def test_e04_just_inside_and_just_outside() -> None:
    assert arm_is_valid(0.0599, 0.05, 0.01)
    assert not arm_is_valid(0.0601, 0.05, 0.01)


def test_e05_preemptions_without_a_finished_request() -> None:
    names = ("vllm:num_preemptions_total", "vllm:request_success_total")
    begin, end = dict.fromkeys(names, 0.0), {names[0]: 40.0, names[1]: 0.0}
    found = pressure(scrape((0.0, begin), (60.0, end)), {}, None)
    assert (found.preemptions, found.preemptions_per_100) == (40.0, None)


def test_e06_waiting_without_a_known_limit_is_not_admission() -> None:
    page = {"vllm:num_requests_running": 4.0, "vllm:num_requests_waiting": 6.0,
            "vllm:kv_cache_usage_perc": 0.3}  # fmt: skip
    pages = [(float(t), page) for t in range(0, 60, 10)]
    assert pressure(scrape(*pages), {"max_num_seqs": 4}, None).limit == "admission"
    assert pressure(scrape(*pages), {}, None).limit != "admission"


def test_e07_a_session_that_failed_and_went_on_is_not_deeper_than_it_is(tmp_path: Path) -> None:
    rows = [planted.turn(f"s{s}", i, start=10.0 + i) for s in range(5) for i in range(2)]
    rows += [planted.failed("s0", 2, "http_500", start=12.0), planted.turn("s1", 2, start=12.0)]
    measured, _ = figures(tmp_path / "run", rows)
    found = session_figures(arms_of([measured])[0].turns(), planned_turns=3)
    assert [t.sessions for t in found.by_turn][:2] == [5, 5]
    assert (found.broken, found.completed) == (1, 1)
    assert found.by_turn[-1].mean_ttft_s is None
    assert not np.isnan(found.by_turn[0].mean_ttft_s or math.nan)
