"""Which turns of a process count, by the rules of docs/metrics.md, as they are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentload import turn_metrics as tm
from agentload.live.totals import HISTOGRAMS, TURN_CLASSES, ClassTotals
from agentload.recording.record import TurnRecord

LIMITS = ("ttft_s", "tpot_s", "itl_p99_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class CountingRules:
    """What decides whether a turn is measured, counted and good.

    `slos` has the limits in seconds by turn class, those that are not None.
    """

    unmeasured_stages: frozenset[str]
    window_from_s: float | None  # of the stages, not of the run
    window_to_s: float | None
    max_tokens_per_s: float
    slos: Mapping[str, Mapping[str, float]]


Dirty = dict[str, dict[str, set[int]]]  # turn class -> histogram -> buckets


@dataclass(slots=True)
class LiveTurns:
    """The totals of one process, and which parts of them nobody else knows yet."""

    rules: CountingRules
    totals: dict[str, ClassTotals] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)
    unsent: Dirty = field(default_factory=dict)
    _from_s: float | None = None
    _to_s: float | None = None

    def begin_stages(self, from_s: float) -> None:
        """The stages count from this second of the run on."""
        start_s, end_s = self.rules.window_from_s, self.rules.window_to_s
        self._from_s = None if start_s is None else from_s + start_s
        self._to_s = None if end_s is None else from_s + end_s

    def end_measuring(self, to_s: float) -> None:
        """Turns that start after this second of the run are not measured."""
        self._to_s = to_s

    def add(self, row: TurnRecord, usable_gaps_us: Sequence[int]) -> None:
        """Count one recorded attempt; one that is not measured changes nothing."""
        if row.turn_class not in TURN_CLASSES or not self._is_measured(row):
            return
        totals = self.totals.setdefault(row.turn_class, ClassTotals())
        dirty = self.unsent.setdefault(row.turn_class, {name: set() for name in HISTOGRAMS})
        implausible = tm.is_implausible(
            row.ttft_s,
            tm.difference_s(row.last_chunk_s, row.first_chunk_s),
            row.output_tokens,
            row.output_chunks,
            self.rules.max_tokens_per_s,
        )
        _count_outcome(totals, row, implausible)
        self._judge(totals.counts, row, implausible)
        if row.status == "success" and not implausible:
            _count_good(totals.counts, row)
            for name, values_us in _durations(row, usable_gaps_us):
                dirty[name].update(totals.histograms[name].add_us(values_us))

    def _is_measured(self, row: TurnRecord) -> bool:
        if self._from_s is None or row.stage in self.rules.unmeasured_stages:
            return False
        after_end = self._to_s is not None and row.call_start_s > self._to_s
        return row.call_start_s >= self._from_s and not after_end

    def _judge(self, counts: Counter[str], row: TurnRecord, implausible: bool) -> None:
        """A limit is met at the limit; a figure the turn does not have meets it."""
        limits = self.rules.slos.get(row.turn_class)
        if not limits or row.status == "aborted":
            return
        counts["slo_judged"] += 1
        if row.status != "success":
            return
        good = True
        for name, limit_s in limits.items():
            value_s = getattr(row, name)
            if name == "itl_p99_s" and implausible:
                continue  # the analysis reads no gaps of a turn that does not count
            if value_s is not None and value_s > limit_s:
                counts[f"slo_{name}"] += 1
                good = False
        counts["slo_good"] += good


def _count_outcome(totals: ClassTotals, row: TurnRecord, implausible: bool) -> None:
    counts = totals.counts
    counts["turns"] += 1
    counts["implausible"] += implausible
    if row.status == "success":
        counts["successes"] += 1
    elif row.status == "aborted":
        counts["aborted"] += 1
    else:
        counts["errors"] += 1
        totals.errors[row.error_class or "unknown"] += 1


def _count_good(counts: Counter[str], row: TurnRecord) -> None:
    counts["counted"] += 1
    counts["output_tokens"] += row.output_tokens or 0
    if row.prompt_tokens is not None and row.cached_tokens is not None:
        counts["prompt_tokens"] += row.prompt_tokens
        counts["cached_tokens"] += row.cached_tokens
    if row.stall_count is not None:
        counts["stall_judged_turns"] += 1
        counts["stalls"] += row.stall_count
        counts["stalled_turns"] += row.stall_count > 0


def _durations(row: TurnRecord, gaps_us: Sequence[int]) -> list[tuple[str, Sequence[int]]]:
    """What goes into which histogram, in whole microseconds."""
    seconds = {
        "ttft": row.ttft_s,
        "jitter": row.jitter_s,
        "e2e": row.e2e_s,
        "tpot": row.tpot_s,
    }
    found: list[tuple[str, Sequence[int]]] = [
        (name, (round(value * 1e6),)) for name, value in seconds.items() if value is not None
    ]
    return [*found, ("itl", gaps_us)]
