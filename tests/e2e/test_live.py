"""The live figures of real runs against what the analysis computes from their folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis.distribution import Distribution
from analysis.measured import measure
from analysis.metrics import ClassFigures, arms_of, class_figures
from tests.e2e.locust_process import Bench, Locust, free_port, until
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

LOCUSTFILE = Path(__file__).with_name("live_locustfile.py")
STAGES = (
    "[{name: low, duration_s: 2, users: 4, measured: false},"
    " {name: high, duration_s: 7, users: 16, ramp_s: 1}]"
)
SHORT_WAITS = "{tool: {dist: uniform, min: 0.05, max: 0.15}}"
SLOS = "{cold: {ttft_s: 2.0}, tool: {ttft_s: 0.06, tpot_s: 0.05, itl_p99_s: 0.08}}"


@dataclass(frozen=True)
class Ended:
    """A run that is over: the last live figures, and the analysis' of the same classes."""

    live: dict[str, Any]
    analysis: dict[str, ClassFigures]
    seconds: float
    locust: Locust

    def classes(self) -> Iterator[tuple[dict[str, Any], ClassFigures]]:
        shown = {c["turn_class"]: c for c in self.live["classes"]}
        assert set(shown) == set(self.analysis)
        for name, figures in self.analysis.items():
            yield shown[name], figures


def args(*more: str) -> list[str]:
    wanted = (f"stages={STAGES}", f"waits={SHORT_WAITS}", f"slos={SLOS}", *more)
    sets = [part for value in wanted for part in ("--set", value)]
    return ["-f", str(LOCUSTFILE), "--headless", "--stop-timeout", "10", "--arm", "base", *sets]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """Now and then an answer with status 500, or one that comes in one piece."""
    log = tmp_path_factory.mktemp("faulty") / "requests.jsonl"
    faults = ("--fault", "status:code=500,every=9", "--fault", "buffer:every=14")
    with Sim("--enable-prompt-tokens-details", *faults, log=log) as sim:
        yield sim


def ended(bench: Bench, locust: Locust, figures: Path) -> Ended:
    until(lambda: locust.process.poll() is not None, "the run ends", 250.0)
    assert locust.wait() in (0, 1, 3), locust.output
    measured = measure(bench.folder().path)
    (arm,) = arms_of([measured])
    found = {c.turn_class: c for c in class_figures(arm)}
    live = json.loads(figures.read_text(encoding="utf-8"))
    return Ended(live, found, measured.window.seconds, locust)


def distributed(bench: Bench, *given: str, env: dict[str, str]) -> Locust:
    """A master with two workers, all with the locustfile of this test."""
    port = str(free_port())
    for _ in range(2):
        at = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
        bench.start("-f", str(LOCUSTFILE), *at, env=env)
    expected = ("--expect-workers", "2", "--expect-workers-max-wait", "60")
    return bench.owner("--master", "--master-bind-port", port, *expected, *given, env=env)


@pytest.fixture(scope="module", params=["single", "distributed", "stop rule"])
def run(
    request: pytest.FixtureRequest, faulty: Sim, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("live")
    bench = Bench(folder, f"http://127.0.0.1:{faulty.port}")
    figures = folder / "figures.json"
    env = {"LIVE_FIGURES": str(figures)}
    more = ("stop.after_turns=60",) if request.param == "stop rule" else ()
    try:
        if request.param == "single":
            yield ended(bench, bench.owner(*args(), env=env), figures)
        else:
            yield ended(bench, distributed(bench, *args(*more), env=env), figures)
    finally:
        bench.close()


def test_counts_are_those_of_the_analysis(run: Ended) -> None:
    for live, figures in run.classes():
        for name in ("turns", "successes", "errors", "aborted", "implausible"):
            assert live[name] == getattr(figures, name), (live["turn_class"], name)
        assert live["errors_by_class"] == figures.errors_by_class
        assert live["counted"] == figures.output_tokens.n
        assert live["stalls"] == figures.stall_count
        assert live["arm"] == "base"
        assert live["in_flight"] == 0
    every = run.analysis["all"]
    assert every.turns > 40
    assert every.errors > 0


def test_percentiles_are_those_of_the_analysis_within_the_stated_error(run: Ended) -> None:
    error = run.live["relative_error"]
    assert error <= 0.01
    compared = 0
    for live, figures in run.classes():
        for name in ("ttft", "itl", "jitter", "e2e", "tpot"):
            shown, found = live[name], getattr(figures, f"{name}_s")
            assert isinstance(found, Distribution)
            assert shown["samples"] == found.n, (live["turn_class"], name)
            for q in ("p50", "p90", "p99"):
                exact, value = getattr(found, q), shown[f"{q}_s"]
                assert (value is None) == (exact is None), (live["turn_class"], name, q)
                if exact is not None:
                    # what files hold is rounded to the microsecond
                    assert math.isclose(value, exact, rel_tol=error, abs_tol=2e-6), (
                        live["turn_class"], name, q, value, exact,
                    )  # fmt: skip
                    compared += 1
            if found.n:
                assert shown["max_s"] == pytest.approx(found.max, abs=2e-6)
    assert compared >= 15


def test_rates_shares_and_lights_are_those_of_the_analysis(run: Ended) -> None:
    assert run.live["measured_s"] == pytest.approx(run.seconds)
    for live, figures in run.classes():
        assert live["output_tokens_per_s"] == pytest.approx(figures.output_tokens_per_s)
        assert live["cache_hit_ratio"] == pytest.approx(figures.cache_hit.value)
        assert live["slo_share"] == pytest.approx(figures.slo_share_of_all)
        assert live["goodput_per_s"] == pytest.approx(figures.goodput_per_s)
        assert live["stalled_turn_share"] == pytest.approx(figures.stalled_turn_share)
    lights = {light["turn_class"]: light for light in run.live["slos"]}
    tool = lights["tool"]
    assert tool["judged"] > 10
    assert tool["share"] == pytest.approx(run.analysis["tool"].slo_share_of_all)
    assert tool["misses"]["failed"] == run.analysis["tool"].errors


def test_the_charts_have_a_point_a_second_with_what_the_server_said(run: Ended) -> None:
    names, points = run.live["history_fields"], run.live["history"]
    assert len(points) >= 5
    times = [point[names.index("time_s")] for point in points]
    assert times == sorted(times)
    assert max(point[names.index("users")] for point in points) == 16
    assert max(point[names.index("running")] or 0 for point in points) > 0
    assert run.live["server"]["prefix_hit_ratio"] > 0.5
    assert run.live["state"] in ("complete", "interrupted")
    assert run.live["load"]["level"] in ("valid", "suspect", "invalid")
    assert run.live["load"]["rows_lost"] == 0
