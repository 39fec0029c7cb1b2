"""The table of replicas in a report."""

from __future__ import annotations

from analysis.replicas import Replicas
from analysis.report import format as f
from analysis.report.tables import TextTable
from analysis.results import Results

HEADINGS = ("arm", "replica", "turns", "sessions", "share of the load", "prefix cache hit")


def replicas_of(results: Results) -> list[TextTable]:
    """One row for each replica of each run that had several; no table where none had."""
    rows, notes = [], []
    for arm in results.arms:
        for found in arm.replicas:
            if found is None:
                continue
            notes.append(f"{arm.arm.name}: {told(found)}")
            loads = [row.load_tokens for row in found.rows]
            total = sum(load for load in loads if load is not None)
            for i, row in enumerate(found.rows):
                share = None if row.load_tokens is None or not total else row.load_tokens / total
                rows.append(
                    [
                        arm.arm.name if i == 0 else "",
                        row.name,
                        f.NOTHING if row.turns is None else f"{row.turns:,}",
                        f.NOTHING if row.sessions is None else f"{row.sessions:,}",
                        f.share(share),
                        f.share(row.hit),
                    ]
                )
    note = "Load is prompt tokens. " + " ".join(notes)
    return [TextTable(HEADINGS, rows, "Replicas", note, text_columns=2)] if rows else []


def told(found: Replicas) -> str:
    """Imbalance and moves as sentences."""
    uneven = (
        "how even the load was is not known."
        if found.imbalance is None
        else f"the busiest replica had {f.number(found.imbalance)} times the mean load."
    )
    moves = found.moves
    if moves is None:
        return f"{uneven} Whether sessions changed the replica is not known: no answer names it."
    price = (
        f"{f.share(moves.moved_share)} of {moves.followed:,} turns were answered by another "
        f"replica than the session's turn before, which computed {f.number(moves.lost_tokens)} "
        f"tokens again ({f.share(moves.lost_share)} of all prompt tokens)."
    )
    return f"{uneven} {price}"
