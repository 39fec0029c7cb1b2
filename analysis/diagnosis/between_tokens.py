"""Findings about the gaps between tokens."""

from __future__ import annotations

import numpy as np

from analysis.finding import Finding, rows_by
from analysis.interference import Interference, prefill_intervals
from analysis.metrics import ClassFigures
from analysis.pressure import switch_setting, whole_setting
from analysis.report import format as f
from analysis.results import ArmResults
from analysis.waterfall import prefill_s_per_token

MIN_STALLED_SHARE = 0.01  # of the turns
MIN_EXPLAINED = 0.5
WHOLE_PREFILL = 0.7  # of an offender's prefill that one gap covers: then it ran in one step
DEFAULT_TPOT_LIMIT_S = 0.05
TRY_CHUNK = 2048  # vLLM's own example of a small --max-num-batched-tokens


def prefills_stall_streams(arm: ArmResults) -> Finding | None:
    """Streams stand still during other turns' prefills."""
    found = [i for i in arm.interference if i is not None and i.stall_s > 0]
    row = arm.classes[-1]
    if not found or (row.stalled_turn_share or 0.0) < MIN_STALLED_SHARE:
        return None
    worst = max(found, key=lambda i: i.stall_s)
    if (worst.explained_share or 0.0) < MIN_EXPLAINED:
        return None
    name, title, advice = _chunking(arm)
    turns = arm.arm.turns()
    return Finding(
        name,
        title,
        "problem",
        "high" if _chunked(arm) is not None else "medium",
        _stall_evidence(worst, row),
        advice,
        _stall_effect(arm, worst, row),
        arm.arm.name,
        rows_by(turns, turns["stall_s"]),
    )


def _chunked(arm: ArmResults) -> bool | None:
    return switch_setting(arm.arm.settings, "enable_chunked_prefill")


def _chunking(arm: ArmResults) -> tuple[str, str, str]:
    """(name, title, advice) by what the settings say and what the stalls look like."""
    if _chunked(arm) is False:
        return (
            "chunking-off",
            "Chunked prefill is off: a prefill stops every stream",
            "Switch --enable-chunked-prefill on.",
        )
    if _chunked(arm) and whole_prefill_gaps(arm) > MIN_EXPLAINED and _over_budget(arm):
        return (
            "not-in-force",
            "Chunked prefill is set but does not act",
            "Check the server's log for enable_chunked_prefill and the version: prompts larger "
            "than the token budget still ran in one step.",
        )
    return (
        "chunk-too-large",
        "Prefill chunks are too large for the streams beside them",
        "Lower --max-num-batched-tokens (or set --long-prefill-token-threshold); prefills get "
        "somewhat slower.",
    )


def _stall_effect(arm: ArmResults, worst: Interference, row: ClassFigures) -> str:
    """The longest gap of a smaller chunk, at the run's own seconds per prefilled token."""
    turns = arm.arm.turns()
    cost = prefill_s_per_token(turns[turns["counted"].to_numpy()])
    gone = f"up to {f.share(worst.explained_share)} of the {f.seconds(worst.stall_s)} stalled go"
    if cost is None:
        return f"The longest gap shrinks in proportion to the chunk; {gone}."
    budget = whole_setting(arm.arm.settings, "max_num_batched_tokens")
    chunk = TRY_CHUNK if budget is None or budget > TRY_CHUNK else budget // 2
    return (
        f"With {chunk:,} tokens a step the longest gap falls from {f.seconds(row.itl_s.max)} "
        f"to about {f.seconds(chunk * cost + (row.itl_s.p50 or 0.0))}; {gone}."
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
    running = [p.running_mean for p in arm.pressure if p.running_mean is not None]
    beside = f" {f.number(max(running))} requests run on average." if running else ""
    turns = arm.arm.turns()
    return Finding(
        "decode-bound",
        "Decoding itself is slower than the limit",
        "problem",
        "medium",
        f"Half of all gaps are longer than {f.seconds(row.itl_s.p50)}; the limit on TPOT is "
        f"{f.seconds(limit)}.{beside}",
        "Fewer sequences at once (--max-num-seqs), a faster GPU or quantised weights, tensor "
        "parallel, or more replicas. Scheduling of prefills is not the cause when the median gap "
        "is this long.",
        f"The limit needs a step that is {f.share(1.0 - limit / row.itl_s.p50)} shorter.",
        arm.arm.name,
        rows_by(turns, turns["tpot_s"].where(turns["counted"])),
    )


RULES = (prefills_stall_streams, decode_bound)
