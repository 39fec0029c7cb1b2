"""Findings about the KV memory."""

from __future__ import annotations

import numpy as np

from analysis.finding import Finding, rows_by
from analysis.pressure import MAX_PREEMPTIONS_PER_100, Pressure
from analysis.report import format as f
from analysis.results import ArmResults

NEAR_FULL = 0.9


def kv_pressure(arm: ArmResults) -> Finding | None:
    """Preemptions, or a KV cache so full that they are near."""
    worst = max(arm.pressure, key=lambda p: p.preemptions_per_100 or 0.0)
    if worst.over_memory_limit:
        return _storm(arm, worst)
    usage = max((p.kv_usage_max or 0.0) for p in arm.pressure)
    if usage < NEAR_FULL:
        return None
    fit = next((p.sessions_that_fit for p in arm.pressure if p.sessions_that_fit), None)
    return Finding(
        "kv-cliff-near",
        "The KV cache is nearly full",
        "hint",
        "medium",
        f"KV use reached {f.share(usage)} without preemptions"
        + (f"; {fit} sessions of this size fit." if fit else "."),
        "Do not add sessions to this replica: the next ones cause evictions and preemptions. "
        "Cached blocks that are free do not count in this figure.",
        f"There is room for {f.share(1.0 - usage)} more at the peak.",
        arm.arm.name,
        _rows_at_peak(arm),
    )


def _storm(arm: ArmResults, worst: Pressure) -> Finding:
    turns = arm.arm.turns()
    below = f" to below {worst.sessions_that_fit}" if worst.sessions_that_fit else ""
    longest = arm.classes[-1].itl_s.max
    return Finding(
        "preemption-storm",
        "The KV cache is too small for what runs at once",
        "problem",
        "high",
        f"{f.number(worst.preemptions_per_100)} preemptions for 100 finished requests "
        f"(bound {MAX_PREEMPTIONS_PER_100:g}); KV use up to {f.share(worst.kv_usage_max)}. "
        "Preempted requests compute their prompt again.",
        f"Lower --max-num-seqs or the number of sessions per replica{below}, or add KV memory.",
        "Preemptions end, and with them the longest gaps inside answers"
        + (f" (now {f.seconds(longest)})." if longest is not None else "."),
        arm.arm.name,
        rows_by(turns, turns["itl_max_s"]),
    )


def _rows_at_peak(arm: ArmResults) -> tuple[int, ...]:
    """Turns that began nearest to the moment of the highest KV use."""
    usage = [run.scrape.spread("kv_usage") for run in arm.arm.runs]
    peaks = [(float(u[2].max()), float(u[0][int(np.argmax(u[2]))]), i)
             for i, u in enumerate(usage) if u is not None and len(u[2])]  # fmt: skip
    if not peaks:
        return ()
    _, at_s, number = max(peaks)
    turns = arm.arm.turns()
    distance = (turns["call_start_s"] - at_s).abs().where(turns["run"] == number)
    return rows_by(turns, -distance)


def hits_not_reported(arm: ArmResults) -> Finding | None:
    """Neither usage nor counters say what was cached."""
    everything = arm.classes[-1]
    if everything.cache_hit.value is not None or not everything.successes:
        return None
    turns = arm.arm.turns()
    return Finding(
        "cache-unknown",
        "Cache hits are not reported",
        "hint",
        "high",
        f"Neither the usage of {everything.successes:,} answers nor /metrics say how many prompt "
        "tokens were cached.",
        "Start vLLM with --enable-prompt-tokens-details, and give the URL of /metrics.",
        "No time changes; the cache, prefill and interference figures appear.",
        arm.arm.name,
        rows_by(turns, turns["prompt_tokens"].where(turns["counted"])),
    )


RULES = (kv_pressure, hits_not_reported)
