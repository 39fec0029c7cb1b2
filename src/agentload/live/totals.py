"""What one turn class came to so far: counts and histograms that only grow.

Every number here is a count of something that happened, so two parts are added by adding numbers,
and a part that arrives twice is recognised by not being larger than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agentload.live.histogram import LogHistogram

TURN_CLASSES = ("cold", "tool", "user", "child", "rebuild")
HISTOGRAMS = ("ttft", "itl", "jitter", "e2e", "tpot")

# Names of the counts. `successes` includes implausible turns, `counted` does not; what follows
# `counted` is of counted turns, `slo_*` of all that were judged.
COUNTS = (
    "turns",
    "successes",
    "errors",
    "aborted",
    "implausible",
    "counted",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "stalls",
    "stall_judged_turns",
    "stalled_turns",
    "slo_judged",
    "slo_good",
    "slo_ttft_s",
    "slo_tpot_s",
    "slo_itl_p99_s",
    "slo_e2e_s",
)


class ClassTotals:
    """Counts, errors by class and histograms of one turn class."""

    __slots__ = ("counts", "errors", "histograms")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.histograms = {name: LogHistogram() for name in HISTOGRAMS}

    def merge(self, other: ClassTotals) -> None:
        self.counts.update(other.counts)
        self.errors.update(other.errors)
        for name, histogram in other.histograms.items():
            self.histograms[name].merge(histogram)

    @classmethod
    def sum_of(cls, parts: Iterable[ClassTotals]) -> ClassTotals:
        total = cls()
        for part in parts:
            total.merge(part)
        return total


Totals = Mapping[str, ClassTotals]  # by turn class
