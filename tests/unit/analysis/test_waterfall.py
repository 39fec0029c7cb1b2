"""The parts of TTFT on turns whose parts are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted
import pytest

from analysis.results import ArmResults, analyse


def results(folder: Path, rows: list, **given: Any) -> ArmResults:
    return analyse([planted.write_run(folder, rows, **given)]).arms[0]


def split_turn(session: str, index: int, queue: float, prefill: float, **given: Any) -> Any:
    """send 1 ms, front end 99 ms, then the queue and the prefill given."""
    return planted.turn(
        session,
        index,
        ttft=0.1 + queue + prefill,
        server_queue_s=queue,
        server_prefill_s=prefill,
        frontend_s=0.099,
        **given,
    )


def test_the_parts_of_a_turn_add_up(tmp_path: Path) -> None:
    rows = [split_turn("s0", 1, 0.2, 0.3), split_turn("s1", 1, 0.4, 0.5)]
    (fall,) = results(tmp_path, rows).waterfalls
    assert (fall.label, fall.turns, fall.source) == ("T2+", 2, "per turn")
    assert fall.parts == (
        pytest.approx(0.001),
        pytest.approx(0.099),
        pytest.approx(0.3),
        pytest.approx(0.4),
    )
    assert sum(fall.parts) == pytest.approx(fall.ttft_s)


def test_the_slow_tenth_is_told_apart(tmp_path: Path) -> None:
    rows = [split_turn(f"s{i}", 1, 2.0 if i == 9 else 0.0, 0.1) for i in range(10)]
    by_label = {w.label: w for w in results(tmp_path, rows).waterfalls}
    assert by_label["T2+, slowest 10 %"].queue_s == pytest.approx(2.0)
    assert by_label["T2+, typical"].queue_s == 0.0


def test_a_negative_rest_is_reported_not_cut(tmp_path: Path) -> None:
    row = planted.turn(
        "s0", 1, ttft=0.5, server_queue_s=0.3, server_prefill_s=0.3, frontend_s=-0.101
    )
    (fall,) = results(tmp_path, [row]).waterfalls
    assert fall.frontend_s == pytest.approx(-0.101)
    assert fall.negative == 1


def histogram(name: str, mean: float, count: float) -> list:
    return [
        planted.gauge(t, f"vllm:{name}_{what}", value)
        for t, n in ((0.0, 0.0), (14.0, count))
        for what, value in (("sum", n * mean), ("count", n))
    ]


def test_without_times_per_turn_the_means_of_the_window_are_split(tmp_path: Path) -> None:
    scrape = [
        *histogram("request_queue_time_seconds", 0.2, 10.0),
        *histogram("request_prefill_time_seconds", 0.5, 10.0),
        *histogram("time_to_first_token_seconds", 0.75, 10.0),
    ]
    arm = results(tmp_path, [planted.turn("s0", 1, ttft=0.9)], scrape=scrape)
    (fall,) = arm.waterfalls
    assert fall.source == "window means"
    assert (fall.queue_s, fall.prefill_s) == (pytest.approx(0.2), pytest.approx(0.5))
    assert fall.frontend_s == pytest.approx(0.9 - 0.001 - 0.7)
    assert arm.server_frontend_s == pytest.approx(0.05)


def test_no_times_at_all_give_no_waterfall(tmp_path: Path) -> None:
    assert results(tmp_path, [planted.turn("s0", 1)]).waterfalls == ()


def test_the_front_end_takes_a_larger_share_as_the_cache_hits_more(tmp_path: Path) -> None:
    rows = [
        split_turn("s0", 1, 0.0, 0.9, prompt_tokens=1000, cached_tokens=0),
        split_turn("s1", 1, 0.0, 0.1, prompt_tokens=1000, cached_tokens=900),
        split_turn("s2", 1, 0.0, 0.0, prompt_tokens=1000, cached_tokens=995),
    ]
    found = results(tmp_path, rows).by_hit_ratio
    assert [(b.low, b.high, b.turns) for b in found] == [
        (0.0, 0.5, 1),
        (0.5, 0.9, 1),
        (0.99, 1.0, 1),
    ]
    shares = [b.frontend_share for b in found]
    assert shares == [pytest.approx(0.099), pytest.approx(0.495), pytest.approx(0.99)]


def test_what_idle_time_cost(tmp_path: Path) -> None:
    rows = [
        split_turn("s0", 0, 0.0, 1.0, start=1.0, prompt_tokens=10_000, cached_tokens=0,
                   output_tokens=100),
        # 0.5 s after the end of the turn before: all is there
        split_turn("s0", 1, 0.0, 0.1, start=4.6, prompt_tokens=10_400, cached_tokens=10_100,
                   output_tokens=100),
        # 100 s after it: half is gone
        split_turn("s0", 2, 0.0, 0.5, start=106.8, prompt_tokens=10_600, cached_tokens=5_250,
                   output_tokens=100),
    ]  # fmt: skip
    found = results(tmp_path, rows).by_idle_time
    assert [(b.low_s, b.high_s, b.kept) for b in found] == [
        (0.0, 1.0, 1.0),
        (60.0, 300.0, pytest.approx(0.5)),
    ]
    # prefill: 1.0 s for 10,000 and 0.5 s for 5,350 uncached tokens
    assert found[1].lost_tokens == 5250
    assert found[1].lost_prefill_s == pytest.approx(5250 * 1.5 / 15_350)


def test_front_end_time_grows_with_the_prompt(tmp_path: Path) -> None:
    rows = [
        planted.turn(
            f"s{i}", 1, prompt_tokens=1000 * i, frontend_s=0.01 + 2e-6 * 1000 * i, ttft=0.5
        )
        for i in range(1, 30)
    ]
    line = results(tmp_path, rows).frontend_line
    assert line is not None
    assert line.intercept_s == pytest.approx(0.01)
    assert line.slope_s_per_token == pytest.approx(2e-6)
