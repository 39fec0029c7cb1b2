"""From the totals of a run to the figures that are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentload.live.histogram import LogHistogram
from agentload.live.snapshot import (
    ALL,
    LATER,
    ClassFigures,
    LatencyFigures,
    Light,
    SloLight,
)
from agentload.live.totals import TURN_CLASSES, ClassTotals, Totals

QS = (0.5, 0.9, 0.99)
GOOD_SHARE = 0.99  # of the judged turns that meet their limits
WARN_SHARE = 0.95
_PLAIN_COUNTS = (
    *("turns", "successes", "errors", "aborted", "implausible", "counted"),
    *("output_tokens", "prompt_tokens", "cached_tokens", "slo_judged", "slo_good"),
)
MIN_JUDGED = 10  # fewer turns light no lamp


def groups(totals: Totals) -> dict[str, ClassTotals]:
    """Every class with turns, then `T2+` when more than one class goes into it, then `all`."""
    present = [name for name in TURN_CLASSES if name in totals and totals[name].counts["turns"]]
    later = [name for name in present if name != "cold"]
    found = {name: totals[name] for name in present}
    if len(later) > 1:
        found[LATER] = ClassTotals.sum_of(totals[name] for name in later)
    if present:
        found[ALL] = ClassTotals.sum_of(totals[name] for name in present)
    return found


def class_figures(
    turn_class: str, totals: ClassTotals, arm: str, measured_s: float, in_flight: int
) -> ClassFigures:
    """The figures of one group; rates are per second of the measured stretch."""
    c = totals.counts
    plain: dict[str, Any] = {name: c[name] for name in _PLAIN_COUNTS}
    latencies: dict[str, Any] = {name: _latency(h) for name, h in totals.histograms.items()}
    judged, good = c["slo_judged"], c["slo_good"]
    return ClassFigures(
        turn_class=turn_class,
        arm=arm,
        in_flight=in_flight,
        **plain,
        errors_by_class=dict(totals.errors.most_common()),
        **latencies,
        stalls=c["stalls"] if c["stall_judged_turns"] else None,
        stalled_turn_share=_ratio(c["stalled_turns"], c["stall_judged_turns"]),
        output_tokens_per_s=_ratio(c["output_tokens"], measured_s),
        cache_hit_ratio=_ratio(c["cached_tokens"], c["prompt_tokens"]),
        slo_share=_ratio(good, judged),
        goodput_per_s=_ratio(good, measured_s) if judged else None,
    )


def all_figures(
    totals: Totals, arm: str, measured_s: float, in_flight_of: Callable[[str], int]
) -> tuple[ClassFigures, ...]:
    """The figures of every group that has turns."""
    members = {LATER: TURN_CLASSES[1:], ALL: TURN_CLASSES}
    return tuple(
        class_figures(
            name, group, arm, measured_s, sum(map(in_flight_of, members.get(name, (name,))))
        )
        for name, group in groups(totals).items()
    )


def slo_lights(
    totals: Totals, slos: Mapping[str, Mapping[str, float]]
) -> tuple[tuple[SloLight, ...], Light]:
    """A light for each class with limits, and the one for all of them together."""
    lights = []
    all_judged = all_good = 0
    for turn_class, limits in slos.items():
        counts = totals[turn_class].counts if turn_class in totals else ClassTotals().counts
        judged, good = counts["slo_judged"], counts["slo_good"]
        all_judged, all_good = all_judged + judged, all_good + good
        misses = {name: counts[f"slo_{name}"] for name in limits}
        lights.append(
            SloLight(
                turn_class,
                dict(limits),
                judged,
                _ratio(good, judged),
                {**misses, "failed": counts["errors"]},
                light_of_share(good, judged),
            )
        )
    return tuple(lights), light_of_share(all_good, all_judged)


def light_of_share(good: int, judged: int) -> Light:
    """Good from 99 % on, a warning from 95 % on, else bad; unknown below `MIN_JUDGED` turns."""
    if judged < MIN_JUDGED:
        return "unknown"
    share = good / judged
    return "good" if share >= GOOD_SHARE else "warn" if share >= WARN_SHARE else "bad"


def given_limits(slos: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """The limits of a scenario's `slos` that are given, in seconds by turn class."""
    found: dict[str, dict[str, float]] = {}
    for turn_class, limits in slos.items():
        given = limits if isinstance(limits, dict) else {}
        set_ = {str(k): float(v) for k, v in given.items() if v is not None}
        if set_:
            found[turn_class] = set_
    return found


def _latency(histogram: LogHistogram) -> LatencyFigures:
    p50, p90, p99 = histogram.percentiles_s(QS)
    return LatencyFigures(
        histogram.count, p50, p90, p99, max_s=histogram.max_s, sum_s=histogram.sum_s
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
