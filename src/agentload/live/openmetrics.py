"""The live figures as OpenMetrics text, for Prometheus and what reads the same format.

What was not measured has no sample; it is never 0. Counters begin again with each run of a process,
as a counter of a restarted process does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agentload.live.snapshot import ALL, LATER, ClassFigures, LatencyFigures, Point, Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"
_END = b"# EOF\n"
# The classes of agentload.client.errors and http_NNN; what else a process may say is `other`.
ERROR_CLASSES = frozenset(
    {
        *("auth", "connect_error", "connection_reset", "context_overflow", "dns_error"),
        *("empty_response", "model_not_found", "not_a_stream", "rate_limited", "stream_cut"),
        *("stream_error_event", "timeout_connect", "timeout_first_token", "timeout_read"),
        *("timeout_total", "tls_error", "tokenize_error", "unknown"),
    }
)
_HTTP_CLASS = re.compile(r"http_[1-5][0-9]{2}")
_SUMS = (LATER, ALL)  # groups of classes: a counter of theirs would be added twice
_QUANTILES = (("0.5", "p50_s"), ("0.9", "p90_s"), ("0.99", "p99_s"), ("1", "max_s"))
_CLASS = ("turn_class", "arm")
_LATENCIES = {
    "ttft": "Time to first token of counted turns, since the measured stretch began.",
    "itl": "Gaps between token events of counted turns, since the measured stretch began.",
    "jitter": "Jitter of the gaps of counted turns, since the measured stretch began.",
    "e2e": "Whole duration of counted turns, since the measured stretch began.",
    "tpot": "Time per output token of counted turns, since the measured stretch began.",
}
_RECENT = {
    "ttft": (("0.5", "ttft_p50_s"), ("0.9", "ttft_p90_s"), ("0.99", "ttft_p99_s")),
    "itl": (("0.5", "itl_p50_s"), ("0.99", "itl_p99_s")),
}
_OVER = ("complete", "interrupted")
_STATES = ("idle", "warm_up", "running", "stopping", *_OVER)
_LEVELS = ("valid", "suspect", "invalid")


class Families(Collector):
    """The metric families of one snapshot; none before the first run."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        if self._snapshot is not None:
            yield from (family for family in _families(self._snapshot) if family.samples)


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def parts(snapshot: Snapshot | None) -> Iterator[bytes]:
    """The page of one moment, a family at a time: a process that loads does other work between."""
    for family in Families(snapshot).collect():
        part: bytes = generate_latest(_One(family))  # type: ignore[no-untyped-call]
        yield part.removesuffix(_END)
    yield _END


def exposition(snapshot: Snapshot | None) -> bytes:
    """The page of one moment; before the first run it has no samples."""
    return b"".join(parts(snapshot))


def _families(s: Snapshot) -> Iterator[Metric]:
    classes = [c for c in s.classes if c.turn_class not in _SUMS]
    yield from _of_run(s)
    yield from _of_load(s)
    yield _turns(classes)
    yield _errors(classes)
    yield from _class_counters(classes)
    for name, text in _LATENCIES.items():
        yield _summary(name, text, s.classes)
    if s.history and s.state not in _OVER:
        yield from _recent(s.history[-1], s.arm)
    yield from _class_ratios(s.classes)
    yield from _of_server(s)


def _of_run(s: Snapshot) -> Iterator[Metric]:
    info = {"run_id": s.run_id, "arm": s.arm, "scenario": s.scenario, "model": s.model}
    yield InfoMetricFamily("agentload_run", "Which run the figures are of.", value=info)
    yield _state_set("agentload_state", "State of the run.", _STATES, s.state)
    yield _gauge("agentload_users", "Agents that run now.", s.users)
    yield _gauge("agentload_target_users", "Agents that should run now.", s.target_users)
    yield _gauge("agentload_turns_in_flight", "Turns that wait for their end now.", s.in_flight)
    yield _gauge("agentload_measured_seconds", "Length of the measured stretch.", s.measured_s)
    yield _gauge("agentload_eta_seconds", "Time to the planned end.", s.eta_s)
    yield _counter("agentload_recorded_turns", "Rows of turns, warm-up included.", s.recorded)


def _of_load(s: Snapshot) -> Iterator[Metric]:
    load = s.load
    if load.level is not None:
        help_ = "The load generator's verdict on its own run, as it would be now."
        yield _state_set("agentload_verdict", help_, _LEVELS, load.level)
    lag = "P99 of how late the event loop woke, of the worst process."
    yield _gauge("agentload_loop_lag_seconds", lag, load.loop_lag_p99_s)
    cpu = "Share of one core that the busiest process used."
    yield _gauge("agentload_cpu_ratio", cpu, load.cpu_share)
    yield _gauge("agentload_workers", "Processes that load.", load.workers)
    yield _gauge("agentload_workers_missing", "Of them, not heard of now.", load.workers_missing)
    yield _gauge("agentload_rows_queued", "Rows on their way to the master.", load.rows_queued)
    lost = "Turns that were sent but not recorded; known when the run is over."
    yield _counter("agentload_rows_lost", lost, load.rows_lost)


def _turns(classes: Iterable[ClassFigures]) -> Metric:
    labels = ("turn_class", "arm", "status")
    family = CounterMetricFamily("agentload_turns", "Measured turns that ended.", labels=labels)
    for c in classes:
        ended = (("success", c.successes), ("error", c.errors), ("aborted", c.aborted))
        for status, count in ended:
            family.add_metric((c.turn_class, c.arm, status), count)
    return family


def _errors(classes: Iterable[ClassFigures]) -> Metric:
    labels = (*_CLASS, "error_class")
    family = CounterMetricFamily("agentload_errors", "Measured turns that failed.", labels=labels)
    for c in classes:
        counts: Counter[str] = Counter()
        for name, count in c.errors_by_class.items():
            counts[known_error_class(name)] += count
        for name, count in sorted(counts.items()):
            family.add_metric((c.turn_class, c.arm, name), count)
    return family


def known_error_class(name: str) -> str:
    """The class itself when it is one of the closed set, else `other`."""
    known = name in ERROR_CLASSES or _HTTP_CLASS.fullmatch(name)
    return name if known else OTHER


def _class_counters(classes: list[ClassFigures]) -> Iterator[Metric]:
    wanted = {
        "implausible_turns": ("Successful turns too fast to be true.", "implausible"),
        "output_tokens": ("Output tokens of counted turns.", "output_tokens"),
        "prompt_tokens": ("Prompt tokens of counted turns whose hits are known.", "prompt_tokens"),
        "cached_tokens": ("Of the prompt tokens, those from the prefix cache.", "cached_tokens"),
        "stalls": ("Gaps that were stalls.", "stalls"),
        "slo_judged_turns": ("Turns that the SLO judges.", "slo_judged"),
        "slo_good_turns": ("Of the judged turns, those within all limits.", "slo_good"),
    }
    needs = {"prompt_tokens": "prompt_tokens", "cached_tokens": "prompt_tokens"}
    needs |= {"slo_judged_turns": "slo_judged", "slo_good_turns": "slo_judged"}
    for name, (text, attribute) in wanted.items():
        family = CounterMetricFamily(f"agentload_{name}", text, labels=_CLASS)
        for c in classes:
            value, need = getattr(c, attribute), needs.get(name)
            if value is not None and (need is None or getattr(c, need)):
                family.add_metric((c.turn_class, c.arm), value)
        yield family


def _summary(name: str, text: str, classes: Iterable[ClassFigures]) -> Metric:
    """Quantiles of every group; count and sum only of classes, so that they can be added."""
    family = Metric(f"agentload_{name}_seconds", text, "summary", unit="seconds")
    for c in classes:
        latency: LatencyFigures = getattr(c, name)
        labels = {"turn_class": c.turn_class, "arm": c.arm}
        for quantile, attribute in _QUANTILES:
            _add(family, "", {**labels, "quantile": quantile}, getattr(latency, attribute))
        if c.turn_class not in _SUMS and latency.samples:
            _add(family, "_count", labels, latency.samples)
            _add(family, "_sum", labels, latency.sum_s)
    return family


def _recent(point: Point, arm: str) -> Iterator[Metric]:
    for name, quantiles in _RECENT.items():
        text = f"{name.upper()} of the turns that ended in the last 60 s, all classes but cold."
        family = Metric(f"agentload_recent_{name}_seconds", text, "gauge", unit="seconds")
        for quantile, attribute in quantiles:
            _add(family, "", {"arm": arm, "quantile": quantile}, getattr(point, attribute))
        yield family


def _class_ratios(classes: Iterable[ClassFigures]) -> Iterator[Metric]:
    hit = "Cached share of the prompt tokens, since the measured stretch began."
    good = "Share of the judged turns within all limits, since the measured stretch began."
    for name, text, attribute in (
        ("cache_hit_ratio", hit, "cache_hit_ratio"),
        ("goodput_ratio", good, "slo_share"),
    ):
        family = GaugeMetricFamily(f"agentload_{name}", text, labels=_CLASS)
        for c in classes:
            value = getattr(c, attribute)
            if value is not None:
                family.add_metric((c.turn_class, c.arm), value)
        yield family


def _of_server(s: Snapshot) -> Iterator[Metric]:
    for name, text, value in (
        ("running_requests", "Requests in the running batch.", s.server.running),
        ("waiting_requests", "Requests that wait to be scheduled.", s.server.waiting),
        ("kv_usage_ratio", "KV cache in use, mean over engines.", s.server.kv_usage),
        ("prefix_hit_ratio", "Prefix cache hits of the run, in tokens.", s.server.prefix_hit_ratio),
    ):
        yield _gauge(f"agentload_server_{name}", f"As the suite scraped it: {text}", value)
    text = "As the suite scraped it: preemptions since the run began."
    yield _counter("agentload_server_preemptions", text, s.server.preemptions)


def _state_set(name: str, text: str, states: Iterable[str], now: str) -> Metric:
    return StateSetMetricFamily(name, text, value={state: state == now for state in states})


def _gauge(name: str, text: str, value: float | None) -> Metric:
    unit = "seconds" if name.endswith("_seconds") else ""
    family = Metric(name, text, "gauge", unit=unit)
    _add(family, "", {}, value)
    return family


def _counter(name: str, text: str, value: float | None) -> Metric:
    family = Metric(name, text, "counter")
    _add(family, "_total", {}, value)
    return family


def _add(family: Metric, suffix: str, labels: dict[str, Any], value: float | None) -> None:
    """A sample for what was measured, nothing for what was not."""
    if value is not None:
        family.add_sample(family.name + suffix, labels, value)
