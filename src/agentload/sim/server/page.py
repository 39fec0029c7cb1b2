"""The whole `/metrics` page: engine, HTTP, process, and how well this simulator keeps time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from agentload.sim.core.engine import Engine
from agentload.sim.server.exposition import Family
from agentload.sim.server.metrics import VllmMetrics, cache_config_family

CONTENT_TYPE: Final = b"text/plain; version=1.0.0; charset=utf-8"
_START_TIME: Final = re.compile(rb"\nprocess_start_time_seconds \S+\n")
LATE_S: Final = 0.005
_LATENESS_EDGES: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0,
)  # fmt: skip
# fmt: off
_DURATION_EDGES: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)
# fmt: on


class HttpMetrics:
    """What vLLM's HTTP layer counts, by route."""

    def __init__(self, created_unix_s: float) -> None:
        def family(
            name: str, kind: str, help_text: str, *splits: str, edges: tuple[float, ...] = ()
        ) -> Family:
            return Family(f"http_{name}", kind, help_text, created_unix_s, {}, splits, edges)

        self._requests = family(
            "requests_total", "counter", "Total number of requests by method, status and handler.",
            "handler", "method", "status",
        )  # fmt: skip
        self._request_size = family(
            "request_size_bytes", "summary", "Content length of requests by handler.", "handler"
        )
        self._response_size = family(
            "response_size_bytes", "summary", "Content length of responses by handler.", "handler"
        )
        self._all_durations = family(
            "request_duration_highr_seconds", "histogram", "Latency of all requests.",
            edges=_DURATION_EDGES,
        )  # fmt: skip
        self._all_durations.histogram()
        self._durations = family(
            "request_duration_seconds", "histogram", "Latency by handler.", "handler", "method",
            edges=(0.1, 0.5, 1.0),
        )  # fmt: skip

    def observe(
        self, handler: str, method: str, status: int, seconds: float, received: int, sent: int
    ) -> None:
        """One request; `sent` is 0 for a stream, whose length no header tells."""
        self._requests.value(handler, method, f"{status // 100}xx").add(1)
        self._request_size.summary(handler).observe(received)
        self._response_size.summary(handler).observe(sent)
        self._all_durations.histogram().observe(seconds)
        self._durations.histogram(handler, method).observe(seconds)

    def lines(self) -> Iterator[str]:
        for family in (
            self._requests,
            self._request_size,
            self._response_size,
            self._all_durations,
            self._durations,
        ):
            yield from family.lines()


class TimeKeeping:
    """How late chunks left this process, so that a run on an overloaded simulator is seen."""

    def __init__(self, created_unix_s: float, info: Mapping[str, str]) -> None:
        def family(name: str, kind: str, help_text: str, edges: tuple[float, ...] = ()) -> Family:
            return Family(f"agentload_sim_{name}", kind, help_text, created_unix_s, {}, (), edges)

        what = "Settings of the simulator; speed is simulated seconds per wall second."
        self._info = Family("agentload_sim_info", "gauge", what, created_unix_s, info)
        self._info.value().value = 1.0
        self._lateness = family(
            "lateness_seconds", "histogram",
            "From the scheduled time of a chunk until the kernel has it.",
            _LATENESS_EDGES,
        )  # fmt: skip
        self._late = family(
            "late_chunks_total", "counter", f"Chunks more than {LATE_S * 1000:.0f} ms late."
        )
        self._worst = family(
            "lateness_max_seconds", "gauge", "Lateness of the latest chunk so far."
        )
        for made in (self._late, self._worst):
            made.value()
        self._lateness.histogram()
        self.chunks = 0
        self.late_chunks = 0
        self.worst_s = 0.0

    def delivered(self, late_s: float, chunks: int) -> None:
        self.chunks += chunks
        self._lateness.histogram().observe(late_s, chunks)
        if late_s > LATE_S:
            self.late_chunks += chunks
            self.worst_s = max(self.worst_s, late_s)

    def lines(self) -> Iterator[str]:
        self._late.value().value = self.late_chunks
        self._worst.value().value = self.worst_s
        for family in (self._info, self._lateness, self._late, self._worst):
            yield from family.lines()


class Page:
    """All families; renders the text of a scrape."""

    def __init__(
        self,
        engine: VllmMetrics,
        cache_config: Mapping[str, str],
        http: HttpMetrics,
        time_keeping: TimeKeeping,
        start_unix_s: float,
    ) -> None:
        self._engine = engine
        self._cache = cache_config_family(cache_config)
        self._http = http
        self._time_keeping = time_keeping
        # A restart on purpose keeps the process, which a client takes for one that never restarted.
        self._start = f"\nprocess_start_time_seconds {start_unix_s!r}\n".encode()
        self._process = CollectorRegistry()
        GCCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        ProcessCollector(registry=self._process)

    def render(self, engine: Engine) -> bytes:
        lines = [
            *self._engine.lines(engine),
            *self._cache.lines(),
            *self._http.lines(),
            *self._time_keeping.lines(),
        ]
        process = _START_TIME.sub(self._start, generate_latest(self._process))
        return process + "\n".join(lines).encode() + b"\n"
