"""The figures of a run at one moment, as every live view shows them.

Figures follow docs/metrics.md and are those the analysis computes from the run folder: counts
exactly, percentiles within the relative error of the histogram. None = not measured, or too few
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from agentload.live.histogram import RELATIVE_ERROR

LATER = "T2+"  # every class but cold
ALL = "all"

Light = Literal["good", "warn", "bad", "unknown"]
State = Literal["idle", "warm_up", "running", "stopping", "complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """One latency in seconds: how many values, their percentiles, the largest, their sum."""

    samples: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One turn class of one arm. `turns` are the measured ones, failed and aborted included.

    Latencies, tokens, stalls and the cache hit ratio are of counted turns: measured, successful,
    plausible. `turn_class` is a class, `T2+` (all but cold) or `all`.
    """

    turn_class: str
    arm: str
    turns: int = 0
    in_flight: int = 0  # now, warm-up included
    successes: int = 0
    errors: int = 0
    aborted: int = 0
    implausible: int = 0
    counted: int = 0
    errors_by_class: dict[str, int] = field(default_factory=dict)
    ttft: LatencyFigures = LatencyFigures()
    itl: LatencyFigures = LatencyFigures()
    jitter: LatencyFigures = LatencyFigures()
    e2e: LatencyFigures = LatencyFigures()
    tpot: LatencyFigures = LatencyFigures()
    stalls: int | None = None  # None: no turn had enough gaps
    stalled_turn_share: float | None = None
    output_tokens: int = 0
    output_tokens_per_s: float | None = None
    prompt_tokens: int = 0  # of turns whose cached tokens are known
    cached_tokens: int = 0
    cache_hit_ratio: float | None = None
    slo_judged: int = 0
    slo_good: int = 0
    slo_share: float | None = None
    goodput_per_s: float | None = None

    @property
    def error_rate(self) -> float | None:
        done = self.successes + self.errors
        return self.errors / done if done else None


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """What the servers' `/metrics` pages said last, added over engines and replicas."""

    time_s: float | None = None  # of the last scrape, on the run's clock
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1, the mean over engines
    kv_usage_max: float | None = None
    prefix_hit_ratio: float | None = None  # since the run began, in tokens
    preemptions: float | None = None  # since the run began


@dataclass(frozen=True, slots=True)
class SloLight:
    """How many judged turns of a class met their limits; `limits` and misses by limit."""

    turn_class: str
    limits: dict[str, float]
    judged: int
    share: float | None  # met all their limits
    misses: dict[str, int]
    light: Light


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The load generator's own health; the worst of all its processes."""

    light: Light = "unknown"
    level: str | None = None  # valid, suspect, invalid, as the verdict would be now
    reasons: tuple[str, ...] = ()
    loop_lag_p99_s: float | None = None
    cpu_share: float | None = None  # of one core, the busiest process
    workers: int = 0
    workers_missing: int = 0
    rows_queued: int = 0
    rows_lost: int | None = None  # sent but not recorded; None before the run is over


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of the charts. Percentiles are of all classes but cold, over `WINDOW_S`.

    `run_*` are the same over the whole measured stretch.
    """

    time_s: float
    users: int
    in_flight: int
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    itl_max_s: float | None = None
    run_ttft_p50_s: float | None = None
    run_ttft_p90_s: float | None = None
    run_ttft_p99_s: float | None = None
    run_itl_p50_s: float | None = None
    run_itl_p99_s: float | None = None
    cache_hit_ratio: float | None = None
    output_tokens_per_s: float | None = None
    errors: int = 0
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One run at one moment. Seconds count from the run's start."""

    run_id: str
    run_dir: str
    arm: str
    scenario: str
    model: str
    state: State
    now_s: float
    stage: str | None
    measured_s: float  # length of the measured stretch so far
    eta_s: float | None  # to the planned end; None: until stopped
    planned_s: float | None
    users: int
    target_users: int
    in_flight: int
    recorded: int  # rows, warm-up included
    load: LoadFigures
    classes: tuple[ClassFigures, ...] = ()
    server: ServerFigures = ServerFigures()
    slos: tuple[SloLight, ...] = ()
    goodput_light: Light = "unknown"
    history: Sequence[Point] = ()
    ended_by: str | None = None
    relative_error: float = RELATIVE_ERROR

    def figures(self, turn_class: str) -> ClassFigures | None:
        """The figures of one class, of `T2+` or of `all`; None when no such turn was measured."""
        return next((c for c in self.classes if c.turn_class == turn_class), None)

    def to_json(self, *, history_after_s: float | None = None) -> dict[str, Any]:
        """Plain values. `history` has the points after a moment, as rows in the order of
        `history_fields`; without a moment it is left out."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "history"}
        if history_after_s is not None:
            newer = [p for p in self.history if p.time_s > history_after_s]
            plain["history_fields"] = list(POINT_FIELDS)
            plain["history"] = [[getattr(p, name) for name in POINT_FIELDS] for p in newer]
        return plain


POINT_FIELDS = tuple(f.name for f in fields(Point))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
