"""What the servers said, as it is scraped; and the points of the charts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from agentload.live.history import MAX_POINTS, WINDOW_S, History, Window
from agentload.live.server_tail import ServerTail
from agentload.live.snapshot import Point
from agentload.recording.csvfile import header_line, row_line
from agentload.recording.record import ScrapeSample

Rows = list[tuple[float, str, str, float]]


class Scraped:
    """A `scrape.csv` that grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scrape.csv"
        self.path.write_bytes(header_line(ScrapeSample))
        self.tail = ServerTail(self.path)

    def add(self, rows: Rows, labels: str = '{"engine":"0"}') -> None:
        with self.path.open("ab") as file:
            for time_s, endpoint, metric, value in rows:
                file.write(row_line(ScrapeSample(time_s, endpoint, metric, labels, value)))


@pytest.fixture
def scraped(tmp_path: Path) -> Scraped:
    return Scraped(tmp_path)


def test_engines_are_added_and_fractions_averaged(scraped: Scraped) -> None:
    for endpoint, running, usage in (("http://a", 3.0, 0.2), ("http://b", 4.0, 0.6)):
        rows = [
            (1.0, endpoint, "vllm:num_requests_running", running),
            (1.0, endpoint, "vllm:kv_cache_usage_perc", usage),
            (1.0, endpoint, "vllm:time_to_first_token_seconds_sum", 99.0),
        ]
        scraped.add(rows)
    found = scraped.tail.read(None)
    assert (found.running, found.waiting) == (7.0, None)
    assert (found.kv_usage, found.kv_usage_max) == (pytest.approx(0.4), 0.6)
    assert found.prefix_hit_ratio is None


def test_counters_count_from_measuring_on_and_through_a_restart(scraped: Scraped) -> None:
    asked, hit = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    for at_s, queries, hits in (
        (1.0, 1000, 0),  # before measuring: the base
        (4.0, 2000, 100),  # the last before it
        (6.0, 3000, 900),
        (7.0, 500, 400),  # it began again from 0
    ):
        scraped.add([(at_s, "http://a", asked, queries), (at_s, "http://a", hit, hits)])
        scraped.tail.read(5.0)
    found = scraped.tail.read(5.0)
    assert found.prefix_hit_ratio == pytest.approx((800 + 400) / (1000 + 500))
    assert found.time_s == 7.0


def test_the_newest_name_of_a_figure_is_used(scraped: Scraped) -> None:
    scraped.add([(1.0, "http://a", "vllm:gpu_cache_usage_perc", 0.9)])
    assert scraped.tail.read(None).kv_usage == 0.9
    scraped.add([(2.0, "http://a", "vllm:kv_cache_usage_perc", 0.3)])
    assert scraped.tail.read(None).kv_usage == 0.3


def test_a_server_that_says_nothing_any_more_has_no_queue(scraped: Scraped) -> None:
    scraped.add([(1.0, "http://a", "vllm:num_requests_waiting", 50.0)])
    scraped.add([(8.0, "http://b", "vllm:num_requests_waiting", 2.0)])
    assert scraped.tail.read(None).waiting == 2.0


def test_half_a_line_waits_for_its_rest(scraped: Scraped) -> None:
    line = row_line(ScrapeSample(1.0, "http://a", "vllm:num_requests_running", "{}", 5.0))
    with scraped.path.open("ab") as file:
        file.write(line[:-4])
        file.flush()
        assert scraped.tail.read(None).running is None
        file.write(line[-4:])
    assert scraped.tail.read(None).running == 5.0


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert ServerTail(tmp_path / "scrape.csv").read(1.0).running is None


def test_a_window_holds_what_came_within_it() -> None:
    window, bins = Window(), {100: 0, 1300: 0}
    for second in range(200):
        bins[100 if second < 100 else 1300] += 10
        (p50,) = window.percentiles_s(float(second), bins, (0.5,))
        assert p50 is not None
        if second in (99, 99 + WINDOW_S + 1):
            assert (p50 < 0.1) == (second == 99)


def test_points_are_thinned_out_evenly_and_the_newest_stays() -> None:
    history = History()
    for second in range(4 * MAX_POINTS):
        history.add(Point(float(second), users=1, in_flight=0))
        assert len(history.points) < MAX_POINTS
    times = [point.time_s for point in history.points]
    steps = {b - a for a, b in pairwise(times)}
    assert len(steps) == 1
    assert times[-1] >= 4 * MAX_POINTS - 1 - max(steps)
