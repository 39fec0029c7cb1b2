"""The table of session starts in a report."""

from __future__ import annotations

from analysis.report import format as f
from analysis.report.tables import TextTable
from analysis.results import Results

HEADINGS = (
    "arm", "starts planned", "achieved", "planned /s", "achieved /s", "late P50", "late max",
    "TTFT P50", "effective TTFT P50", "E2E mean", "effective E2E mean", "load",
)  # fmt: skip
NOTE = (
    "Sessions arrive by themselves; a start without a free user is late, or never sent. Effective "
    "latencies begin when a turn was due, so they hold its lateness; all others begin when it was "
    "sent. Overloaded: fewer than 95 % of the planned starts were sent."
)


def starts_of(results: Results) -> list[TextTable]:
    """One row for each arm whose arrivals are open; no table where none are."""
    rows = [
        [
            arm.arm.name,
            f.number(s.planned),
            f.number(s.achieved),
            f.number(s.planned_per_s),
            f.number(s.achieved_per_s),
            f.seconds(s.lateness_s.p50),
            f.seconds(s.lateness_s.max),
            f.percentile(s.ttft_s, "p50"),
            f.percentile(s.effective_ttft_s, "p50"),
            f.seconds(s.e2e_s.mean),
            f.seconds(s.effective_e2e_s.mean),
            "not known" if s.overloaded is None else "overloaded" if s.overloaded else "as planned",
        ]
        for arm in results.arms
        if (s := arm.starts) is not None
    ]
    return [TextTable(HEADINGS, rows, "Session starts", NOTE)] if rows else []
