"""The figures of a report against the simulator's own log of the same run."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from simulated import World

from analysis.metrics import ALL, LATER
from analysis.results import ArmResults, analyse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def world() -> World:
    """Five slots and small memory: queues, evictions and stalls all happen."""
    return World(max_seqs=5, num_blocks=36_000, budget=4096, wait_s=8.0, seed=5).run()


@pytest.fixture(scope="module")
def arm(world: World, tmp_path_factory: pytest.TempPathFactory) -> ArmResults:
    return analyse([world.write(tmp_path_factory.mktemp("truth") / "run", "base")]).arms[0]


def linear(values: list[float], q: float) -> float:
    """A percentile by linear interpolation, from the standard library."""
    percent = round(q * 100)
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def test_times_to_the_first_token_are_those_of_the_engine(world: World, arm: ArmResults) -> None:
    for cold, name in ((True, "cold"), (False, "tool")):
        mine = [r for r in world.offline.results if (r.turn_index == 0) == cold]
        row = arm.of_class(name)
        assert row is not None
        assert row.successes == len(mine)
        ttft = [r.ttft_s for r in mine]
        assert row.ttft_s.mean == pytest.approx(statistics.fmean(ttft), abs=2e-6)
        assert row.ttft_s.p50 == pytest.approx(statistics.median(ttft), abs=2e-6)
        assert row.ttft_s.max == pytest.approx(max(ttft), abs=2e-6)
    later = arm.later
    assert later is not None
    ttft = [r.ttft_s for r in world.offline.results if r.turn_index]
    assert later.ttft_s.p90 == pytest.approx(linear(ttft, 0.9), abs=2e-6)
    assert later.ttft_s.p99 == pytest.approx(linear(ttft, 0.99), abs=2e-6)


def test_the_waterfall_is_the_engines_queue_and_prefill(world: World, arm: ArmResults) -> None:
    requests = [(r.engine_s, r.request) for r in world.offline.results if r.turn_index]
    queue = statistics.fmean(q.scheduled_s - at_s for at_s, q in requests)
    prefill = statistics.fmean(q.first_token_s - q.scheduled_s for _, q in requests)
    (fall,) = [w for w in arm.waterfalls if w.label == LATER]
    assert queue > 0.1
    assert fall.queue_s == pytest.approx(queue, abs=2e-6)
    assert fall.prefill_s == pytest.approx(prefill, abs=2e-6)
    assert sum(fall.parts) == pytest.approx(fall.ttft_s, abs=1e-5)


def test_gaps_are_those_the_engine_counted(world: World, arm: ArmResults) -> None:
    """Its own histogram is true to half a percent; gaps are recorded in whole microseconds."""
    everything = arm.of_class(ALL)
    assert everything is not None
    (engine,) = world.engines
    gaps = everything.itl_s
    assert gaps.n == engine.counters.generated - engine.counters.finished_requests
    for q, value in ((0.5, gaps.p50), (0.99, gaps.p99), (1.0, gaps.max)):
        assert value == pytest.approx(engine.itl.quantile(q), rel=0.006)
    stamps = engine.stamps.values()
    total = sum(s[-1] - s[0] for s in stamps)
    assert gaps.mean is not None
    assert gaps.mean * gaps.n == pytest.approx(total, rel=1e-5)


def test_cached_tokens_and_counters_are_the_engines(world: World, arm: ArmResults) -> None:
    (engine,) = world.engines
    counters = engine.counters
    everything = arm.of_class(ALL)
    assert everything is not None
    assert everything.cache_hit.value == pytest.approx(
        counters.prefix_hits / counters.prefix_queries
    )
    assert 0.1 < counters.prefix_hits / counters.prefix_queries < 0.97
    assert everything.output_tokens.mean == pytest.approx(
        counters.generated / counters.finished_requests
    )
    (pressure,) = arm.pressure
    assert pressure.finished == counters.finished_requests
    assert pressure.preemptions == counters.preemptions
    assert pressure.running_max == max(s.running for s in engine.log)
    assert pressure.kv_usage_max == pytest.approx(max(s.kv_usage for s in engine.log))


def test_stalls_are_the_gaps_above_the_rule(world: World, arm: ArmResults) -> None:
    (engine,) = world.engines
    count, seconds = 0, 0.0
    for stamps in engine.stamps.values():
        gaps = [b - a for a, b in pairwise(stamps)]
        above = [g for g in gaps if g > max(5 * statistics.median(gaps), 0.25)]
        count, seconds = count + len(above), seconds + sum(above)
    everything = arm.of_class(ALL)
    assert everything is not None
    assert everything.stall_count == count
    (interference,) = arm.interference
    assert interference is not None
    assert interference.stall_s == pytest.approx(seconds, abs=1e-3)
