"""Named findings with their evidence."""

from __future__ import annotations

from dataclasses import replace

from analysis.diagnosis.between_tokens import RULES as BETWEEN_TOKENS
from analysis.diagnosis.cache import RULES as CACHE
from analysis.diagnosis.cache import Reuse
from analysis.diagnosis.errors import RULES as ERRORS
from analysis.diagnosis.first_token import RULES as FIRST_TOKEN
from analysis.diagnosis.memory import RULES as MEMORY
from analysis.diagnosis.replicas import RULES as REPLICAS
from analysis.diagnosis.validity import RULES as VALIDITY
from analysis.finding import Finding
from analysis.results import ArmResults, Results

RULES = (*VALIDITY, *ERRORS, *MEMORY, *CACHE, *REPLICAS, *FIRST_TOKEN, *BETWEEN_TOKENS)

# What follows from another finding is told with it, not as a second thing to mend.
_LOST_CACHE = ("cache-off", "cache-dynamic-prefix", "cache-block-too-large", "cache-eviction")
CAUSES: dict[str, tuple[str, ...]] = {
    "cache-eviction": ("server-restarted", "preemption-storm", "sessions-change-replica"),
    "hits-below-plan": ("server-restarted", "preemption-storm", "sessions-change-replica"),
    "kv-cliff-near": ("cache-eviction",),
    "queue-bound": ("preemption-storm", *_LOST_CACHE, "sessions-change-replica"),
    "prefill-bound": ("chunking-off",),
}
# Seen through a load generator that was late these say little.
TIMED = (
    *("tokenization-bound", "network-bound", "queue-bound", "prefill-bound", "decode-bound"),
    *("chunking-off", "chunk-too-large", "not-in-force"),
)
_ORDER = ("problem", "hint", "expected")


def diagnose(results: Results) -> list[Finding]:
    """Findings of every arm, what makes numbers unusable first, then problems before hints."""
    found = [f for arm in results.arms for f in _of_arm(arm)]
    return sorted(found, key=lambda f: _ORDER.index(f.severity))


def _of_arm(arm: ArmResults) -> list[Finding]:
    found = [f for rule in RULES if (f := rule(arm)) is not None]
    kept, told = list(found), dict.fromkeys((f.name for f in found), "")
    for f in found:
        cause = next((c for c in CAUSES.get(f.name, ()) if c in told), None)
        if cause is not None and _follows(arm, f, cause):
            kept.remove(f)
            told[cause] += f" What follows from it: {f.evidence}{told.pop(f.name)}"
    whole = [replace(f, evidence=f.evidence + told[f.name]) for f in kept]
    starved = any(f.name == "client-bound" for f in found)
    return [replace(f, confidence="low") if starved and f.name in TIMED else f for f in whole]


def _follows(arm: ArmResults, finding: Finding, cause: str) -> bool:
    """A queue for want of slots is a cause of its own; so is a loss of turns that did not move."""
    if cause == "sessions-change-replica" and finding.name != "queue-bound":
        moved = sum(r.moves.lost_tokens for r in arm.replicas if r is not None and r.moves)
        return moved >= Reuse.of(arm).lost_tokens / 2
    return finding.name != "queue-bound" or all(p.limit != "admission" for p in arm.pressure)
