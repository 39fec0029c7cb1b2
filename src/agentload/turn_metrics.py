"""Formulas for the figures of a single turn.

Standard library only: the recording side fills the columns of `turns.csv` with these functions,
the analysis uses the same ones on the same data. Durations are seconds. None = not measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MERGED_GAP = "m"  # both chunks came in one read: they share a stamp
LATE_GAP = "l"  # the client itself was late during the gap
USABLE_GAP = "."

STALL_MEDIAN_FACTOR = 5.0
STALL_FLOOR_S = 0.25

MIN_GAPS_FOR_STALLS = 3  # with two gaps the long one is half of their median
MIN_GAPS_FOR_TURN_P99 = 20  # below it the P99 of a turn is its largest gap under another name

# No request of a current model decodes faster: a stream that seems to was handed out of a buffer.
MAX_PLAUSIBLE_TOKENS_PER_S = 2000.0
MIN_CHUNKS_FOR_SPEED = 5  # an answer in fewer may well have come in one read

_US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class StallRule:
    """A gap is a stall above max(`median_factor` x the turn's median gap, `floor_s`)."""

    median_factor: float = STALL_MEDIAN_FACTOR
    floor_s: float = STALL_FLOOR_S

    def threshold_s(self, median_gap_s: float) -> float:
        return max(self.median_factor * median_gap_s, self.floor_s)


@dataclass(frozen=True, slots=True)
class GapFigures:
    """What the usable gaps of one turn say; a None has too few gaps behind it."""

    itl_p50_s: float | None
    itl_p99_s: float | None
    itl_max_s: float | None
    jitter_s: float | None
    stall_count: int | None
    stall_s: float | None


def difference_s(later_s: float | None, earlier_s: float | None) -> float | None:
    """`later - earlier`; None when one of them was not reached."""
    return None if later_s is None or earlier_s is None else later_s - earlier_s


def ttft_s(send_start_s: float | None, first_chunk_s: float | None) -> float | None:
    """First token chunk (content, reasoning, or a tool-call part; not the role) - send start."""
    return difference_s(first_chunk_s, send_start_s)


def ttfo_s(send_start_s: float | None, first_output_s: float | None) -> float | None:
    """First token chunk that is not reasoning - send start; equals TTFT without reasoning."""
    return difference_s(first_output_s, send_start_s)


def e2e_s(send_start_s: float | None, end_s: float | None) -> float | None:
    """End of the stream ([DONE], else its close, else the deadline) - send start."""
    return difference_s(end_s, send_start_s)


def tpot_s(
    first_chunk_s: float | None, last_chunk_s: float | None, output_tokens: int | None
) -> float | None:
    """(last chunk - first chunk) / (output tokens - 1); None below two tokens.

    TTFT is not in it, and it is no mean of chunk gaps: chunks can carry several tokens. None too
    when all chunks bear one stamp (one chunk, or one read), which says nothing about decoding.
    """
    span_s = difference_s(last_chunk_s, first_chunk_s)
    if not span_s or output_tokens is None or output_tokens < 2:
        return None
    return span_s / (output_tokens - 1)


def lag_s(intended_start_s: float, call_start_s: float) -> float:
    """Call start - intended start: how late the load generator itself was."""
    return call_start_s - intended_start_s


def frontend_s(
    ttft: float | None, send: float | None, queue: float | None, prefill: float | None
) -> float | None:
    """TTFT - (send start to request fully written) - server queue - server prefill.

    What is left is HTTP parsing, tokenization, delivery and the client's read. It can be negative
    by the clocks' noise and is not clipped. None unless all four are measured.
    """
    if ttft is None or send is None or queue is None or prefill is None:
        return None
    return ttft - send - queue - prefill


def plausible_tokens_per_s(sim_speed: float | None) -> float:
    """Fastest plausible decode speed; a simulator at k times real time gets k times."""
    return MAX_PLAUSIBLE_TOKENS_PER_S * max(sim_speed or 1.0, 1.0)


def is_implausible(
    ttft: float | None,
    decode_span_s: float | None,
    output_tokens: int | None,
    chunks: int,
    fastest_tokens_per_s: float,
) -> bool:
    """Answered faster than possible, or before it was sent.

    The speed is (output tokens - 1) / (last - first chunk), judged from `MIN_CHUNKS_FOR_SPEED`
    chunks on; several tokens in no time at all are infinitely fast.
    """
    if ttft is not None and ttft < 0:
        return True
    if chunks < MIN_CHUNKS_FOR_SPEED or decode_span_s is None or output_tokens is None:
        return False
    return output_tokens > 1 and output_tokens - 1 > fastest_tokens_per_s * decode_span_s


def percentile(values: Sequence[float], q: float) -> float | None:
    """Linear interpolation between the nearest ranks, `q` in [0, 1]; None without values.

    The position is q x (n - 1) in the sorted values, so the result stays inside [min, max] and
    one value is its own percentile.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q = {q}: a percentile's q is between 0 and 1")
    if not values:
        return None
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def min_samples(q: float) -> int:
    """Fewest samples a percentile is shown for: ceil(1 / (1 - q)), P90 10, P95 20, P99 100.

    With fewer, no sample is expected beyond the percentile. Up to the median one sample is enough.
    """
    if not 0.0 <= q < 1.0:
        raise ValueError(f"q = {q}: only percentiles below 1 have a minimum of samples")
    return 1 if q <= 0.5 else math.ceil(round(1.0 / (1.0 - q), 6))


def comfortable_samples(q: float) -> int:
    """Samples a percentile is shown for without a mark: ceil(10 / (1 - q)), P90 100, P99 1,000."""
    if not 0.0 <= q < 1.0:
        raise ValueError(f"q = {q}: only percentiles below 1 have a number of samples")
    return math.ceil(round(10.0 / (1.0 - q), 6))


def supported_percentile(values: Sequence[float], q: float) -> float | None:
    """`percentile`, or None when there are fewer than `min_samples(q)` values."""
    return percentile(values, q) if len(values) >= min_samples(q) else None


def usable_gaps_s(gaps_us: Sequence[int], gap_marks: str = "") -> list[float]:
    """The gaps marked usable, in seconds. An empty `gap_marks` means all are."""
    return [gap / _US_PER_S for gap in usable_gaps_us(gaps_us, gap_marks)]


def usable_gaps_us(gaps_us: Sequence[int], gap_marks: str = "") -> Sequence[int]:
    """The gaps marked usable, in whole microseconds. An empty `gap_marks` means all are."""
    if not gap_marks:
        return gaps_us
    if len(gap_marks) != len(gaps_us):
        raise ValueError(f"{len(gap_marks)} gap marks for {len(gaps_us)} gaps")
    marked = zip(gaps_us, gap_marks, strict=True)
    return [gap for gap, mark in marked if mark == USABLE_GAP]


def jitter_s(gaps_s: Sequence[float]) -> float | None:
    """P99 - P50 of the turn's usable gaps; None below `MIN_GAPS_FOR_TURN_P99` gaps."""
    p50, p99 = percentile(gaps_s, 0.5), percentile(gaps_s, 0.99)
    if p50 is None or p99 is None or len(gaps_s) < MIN_GAPS_FOR_TURN_P99:
        return None
    return p99 - p50


def stalls_s(gaps_s: Sequence[float], rule: StallRule | None = None) -> list[float] | None:
    """The turn's gaps above the stall threshold; None below `MIN_GAPS_FOR_STALLS` gaps."""
    if len(gaps_s) < MIN_GAPS_FOR_STALLS:
        return None
    threshold_s = (rule or StallRule()).threshold_s(statistics.median(gaps_s))
    return [gap for gap in gaps_s if gap > threshold_s]


def gap_figures(gaps_s: Sequence[float], rule: StallRule | None = None) -> GapFigures:
    """All gap columns of `turns.csv` from the turn's usable gaps."""
    stalls = stalls_s(gaps_s, rule)
    enough_for_p99 = len(gaps_s) >= MIN_GAPS_FOR_TURN_P99
    return GapFigures(
        itl_p50_s=percentile(gaps_s, 0.5),
        itl_p99_s=percentile(gaps_s, 0.99) if enough_for_p99 else None,
        itl_max_s=max(gaps_s, default=None),
        jitter_s=jitter_s(gaps_s),
        stall_count=None if stalls is None else len(stalls),
        stall_s=None if stalls is None else sum(stalls),
    )
