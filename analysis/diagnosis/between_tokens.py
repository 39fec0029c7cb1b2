"""Findings about the gaps between tokens."""

from __future__ import annotations

import numpy as np

from analysis.finding import Finding
from analysis.interference import Interference, prefill_intervals
from analysis.metrics import ClassFigures
from analysis.pressure import switch_setting, whole_setting
from analysis.report import format as f
from analysis.results import ArmResults

MIN_STALLED_SHARE = 0.01  # of the turns
MIN_EXPLAINED = 0.5
WHOLE_PREFILL = 0.7  # of an offender's prefill that one gap covers: then it ran in one step
DEFAULT_TPOT_LIMIT_S = 0.05


def prefills_stall_streams(arm: ArmResults) -> Finding | None:
    """Streams stand still during other turns' prefills."""
    found = [i for i in arm.interference if i is not None and i.stall_s > 0]
    row = arm.classes[-1]
    if not found or (row.stalled_turn_share or 0.0) < MIN_STALLED_SHARE:
        return None
    worst = max(found, key=lambda i: i.stall_s)
    if (worst.explained_share or 0.0) < MIN_EXPLAINED:
        return None
    chunked = switch_setting(arm.arm.settings, "enable_chunked_prefill")
    whole = whole_prefill_gaps(arm)
    if chunked is False:
        name, title = "chunking-off", "Chunked prefill is off: a prefill stops every stream"
        advice = (
            "Switch --enable-chunked-prefill on: the longest gap becomes one chunk's time instead "
            "of a whole prefill."
        )
    elif chunked and whole > MIN_EXPLAINED and _over_budget(arm):
        name, title = "not-in-force", "Chunked prefill is set but does not act"
        advice = (
            "Check the server's log for enable_chunked_prefill and the version: prompts larger "
            "than the token budget still ran in one step."
        )
    else:
        name, title = "chunk-too-large", "Prefill chunks are too large for the streams beside them"
        advice = (
            "Lower --max-num-batched-tokens (or set --long-prefill-token-threshold): the longest "
            "gap falls about in proportion, prefills get somewhat slower."
        )
    return Finding(
        name,
        title,
        "problem",
        "high" if chunked is not None else "medium",
        _stall_evidence(worst, row),
        advice,
        arm.arm.name,
        _stalled_rows(arm),
    )


def _stall_evidence(worst: Interference, row: ClassFigures) -> str:
    chance = "" if worst.chance_share is None else f", by chance {f.share(worst.chance_share)}"
    return (
        f"{worst.stalls:,} gaps stalled for {f.seconds(worst.stall_s)} in all; "
        f"{f.share(worst.explained_share)} of it during other turns' prefills{chance}. "
        f"{f.share(row.stalled_turn_share)} of the turns were hit; the longest gap was "
        f"{f.seconds(row.itl_s.max)}."
    )


def whole_prefill_gaps(arm: ArmResults) -> float:
    """Share of the stalls that cover most of the prefill of an offender they fall into."""
    covered, total = 0, 0
    for run in arm.arm.runs:
        stalls = run.gaps.stalls
        offenders = prefill_intervals(run.turns)
        offenders = offenders[(offenders["uncached_tokens"] >= 8192).to_numpy()]
        starts, ends = offenders["start_s"].to_numpy(), offenders["end_s"].to_numpy()
        order = np.argsort(-stalls.length_s)[:200]
        for i in order.tolist():
            a, b = stalls.start_s[i], stalls.start_s[i] + stalls.length_s[i]
            inside = np.minimum(ends, b) - np.maximum(starts, a)
            total += 1
            covered += bool((inside > WHOLE_PREFILL * (ends - starts)).any())
    return covered / total if total else 0.0


def _over_budget(arm: ArmResults) -> bool:
    budget = whole_setting(arm.arm.settings, "max_num_batched_tokens")
    largest = arm.classes[-1].uncached_tokens.max
    return budget is not None and largest is not None and largest > 2 * budget


def _stalled_rows(arm: ArmResults) -> tuple[int, ...]:
    worst = arm.arm.turns().nlargest(3, "stall_s")
    return tuple(worst["file_row"].astype(int))


def decode_bound(arm: ArmResults) -> Finding | None:
    """Every token is slow, not only some: the batch is too large or the model too slow."""
    row = arm.later
    if row is None or row.tpot_s.p50 is None or row.itl_s.p50 is None:
        return None
    slos = arm.arm.runs[0].run.manifest.scenario.get("slos")
    limits = [v.get("tpot_s") for v in slos.values() if v] if isinstance(slos, dict) else []
    speed = max(arm.arm.runs[0].run.manifest.sim_speed or 1.0, 1.0)
    limit = min((x for x in limits if x), default=DEFAULT_TPOT_LIMIT_S / speed)
    if row.itl_s.p50 <= limit or row.tpot_s.p50 <= limit:
        return None
    running = max((p.running_mean or 0.0) for p in arm.pressure)
    return Finding(
        "decode-bound",
        "Decoding itself is slower than the limit",
        "problem",
        "medium",
        f"Half of all gaps are longer than {f.seconds(row.itl_s.p50)}; the limit on TPOT is "
        f"{f.seconds(limit)}. {f.number(running)} requests run on average.",
        "Fewer sequences at once (--max-num-seqs), a faster GPU or quantised weights, tensor "
        "parallel, or more replicas. Scheduling of prefills is not the cause when the median gap "
        "is this long.",
        arm.arm.name,
    )


RULES = (prefills_stall_streams, decode_bound)
