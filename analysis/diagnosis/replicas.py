"""Findings about several replicas behind one address."""

from __future__ import annotations

from analysis.finding import Finding, rows_by
from analysis.report import format as f
from analysis.results import ArmResults

MIN_TURNS = 20
MAX_LOST_SHARE = 0.05  # of all prompt tokens
MAX_IMBALANCE = 1.25


def sessions_change_replica(arm: ArmResults) -> Finding | None:
    """Turns whose session moved to another replica find nothing of it in the cache there."""
    for found in arm.replicas:
        moves = found.moves if found is not None else None
        if moves is None or moves.followed < MIN_TURNS or moves.lost_share <= MAX_LOST_SHARE:
            continue
        gain = (
            f"{f.number(moves.lost_tokens / moves.moved)} tokens fewer to prefill a moved turn"
            if moves.ttft_s is None
            else f"TTFT of the moved turns falls by about {f.seconds(moves.ttft_s)} on average"
        )
        return Finding(
            "sessions-change-replica",
            "Sessions change between replicas and lose their cache",
            "problem",
            "high",
            f"{moves.moved:,} of {moves.followed:,} turns were answered by another replica than "
            f"the session's turn before. They computed {f.number(moves.lost_tokens)} tokens again, "
            f"{f.share(moves.lost_share)} of all prompt tokens.",
            "Route by session: a consistent hash of a session header, or a router that knows the "
            "caches (on Kubernetes: the components router and session-stickiness).",
            f"{gain}.",
            arm.arm.name,
            moves.file_rows,
        )
    return None


def replicas_are_uneven(arm: ArmResults) -> Finding | None:
    """One replica has much more to do than the mean."""
    for found in arm.replicas:
        if found is None or found.imbalance is None or found.imbalance <= MAX_IMBALANCE:
            continue
        busiest = max(found.rows, key=lambda row: row.load_tokens or 0.0)
        return Finding(
            "replicas-uneven",
            "Replicas are loaded unevenly",
            "hint",
            "medium" if busiest.prompt_tokens is not None else "low",
            f"Replica {busiest.name} had {f.number(found.imbalance)} times the mean prompt tokens "
            f"of {len(found.rows)} replicas.",
            "With few sessions a hash spreads them unevenly by chance: more sessions, or a router "
            "that looks at the load when a session begins.",
            f"An even load takes {f.share(1 - 1 / found.imbalance)} of the prompt tokens off the "
            "busiest replica; what its turns wait and prefill falls at least as much.",
            arm.arm.name,
            _slowest_of(arm, busiest.name),
        )
    return None


def _slowest_of(arm: ArmResults, replica: str) -> tuple[int, ...]:
    """Lines of that replica's slowest turns; none where no answer names its replica."""
    turns = arm.arm.turns()
    own = (turns["replica"].astype(object) == replica).to_numpy()
    mine = turns[turns["counted"].to_numpy(dtype=bool) & own]
    return rows_by(mine, mine["ttft_s"])


RULES = (sessions_change_replica, replicas_are_uneven)
