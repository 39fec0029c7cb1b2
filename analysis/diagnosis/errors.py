"""Findings about failed turns."""

from __future__ import annotations

from collections.abc import Collection

from analysis.diagnosis.validity import everything
from analysis.distribution import ratio
from analysis.finding import Finding, first_rows
from analysis.report import format as f
from analysis.results import ArmResults

MAX_ERROR_RATE = 0.05
MAX_RATE_LIMITED = 0.01
RATE_LIMIT_CLASSES = ("rate_limited", "http_429")


def rate_limited(arm: ArmResults) -> Finding | None:
    """A gateway refuses requests."""
    row = everything(arm)
    refused = sum(row.errors_by_class.get(name, 0) for name in RATE_LIMIT_CLASSES)
    share = ratio(refused, row.successes + row.errors) or 0.0
    if share < MAX_RATE_LIMITED:
        return None
    return Finding(
        "rate-limited",
        "A gateway limits the rate",
        "problem",
        "high",
        f"{refused:,} of {row.successes + row.errors:,} turns ({f.share(share)}) were refused as "
        "too many.",
        "Raise the limit for this key, or send less: what is measured now is the limit, not the "
        "server.",
        f"{f.share(share)} more of the turns reach the server.",
        arm.arm.name,
        _failed_rows(arm, RATE_LIMIT_CLASSES),
    )


def _failed_rows(arm: ArmResults, classes: Collection[str]) -> tuple[int, ...]:
    turns = arm.arm.turns()
    failed = (turns["status"] == "error").to_numpy() & turns["measured"].to_numpy()
    named = turns["error_class"].astype(object).fillna("unknown").isin(list(classes)).to_numpy()
    return first_rows(turns[failed & named])


def many_errors(arm: ArmResults) -> Finding | None:
    """Too many failures for any verdict on capacity."""
    row = everything(arm)
    others = {k: v for k, v in row.errors_by_class.items() if k not in RATE_LIMIT_CLASSES}
    share = ratio(sum(others.values()), row.successes + row.errors) or 0.0
    if share <= MAX_ERROR_RATE:
        return None
    return Finding(
        "many-errors",
        "Too many turns failed",
        "problem",
        "high",
        f"{f.share(share)} failed: {f.counts(others)}.",
        "Mend the errors first: latencies of the survivors flatter the server, and no capacity "
        "follows from them.",
        f"{f.share(share)} more of the turns enter the figures, which get worse where failed turns "
        "had left the server idle.",
        arm.arm.name,
        _failed_rows(arm, others),
    )


RULES = (rate_limited, many_errors)
