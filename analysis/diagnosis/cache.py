"""Findings about the prefix cache and the KV memory behind it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.finding import Finding
from analysis.pressure import MAX_PREEMPTIONS_PER_100, switch_setting, whole_setting
from analysis.report import format as f
from analysis.results import ArmResults
from analysis.waterfall import prefill_s_per_token

MIN_ELIGIBLE_TURNS = 20
POOR_HIT = 0.9
LOST_TURN = 0.5  # a turn that kept less than this of what it could is one whose cache was lost
MAX_LOST_TURNS = 0.03
NEAR_FULL = 0.9
OFF_PLAN = 0.02  # points of the hit ratio; blocks and the template cost less than one


def reusable_tokens(prompt_tokens: int, first_difference_at: int, block_size: int) -> int:
    """Tokens of a prompt that a cached one can give: whole blocks before the first difference.

    The last prompt token is always computed, so an identical prompt gives one block less.
    """
    return min(first_difference_at, prompt_tokens - 1) // block_size * block_size


def cache_not_effective(arm: ArmResults) -> Finding | None:
    """Turns that extend an earlier one recompute it: one finding, with the likeliest reason."""
    turns = _eligible(arm)
    if len(turns) < MIN_ELIGIBLE_TURNS:
        return None
    kept = (turns["cached_tokens"] / turns["eligible_tokens"]).clip(upper=1.0).to_numpy()
    overall = float(turns["cached_tokens"].sum() / turns["eligible_tokens"].sum())
    if overall >= POOR_HIT and float((kept < LOST_TURN).mean()) <= MAX_LOST_TURNS:
        return None
    reason = next(r for r in _REASONS if r[1](arm, turns, kept))
    lost = float((turns["eligible_tokens"] - turns["cached_tokens"]).clip(lower=0).sum())
    cost = prefill_s_per_token(turns)
    price = "" if cost is None else f", about {f.seconds(lost * cost / len(turns))} a turn"
    worst = turns.assign(kept=kept).nsmallest(3, "kept")
    return Finding(
        reason[0],
        reason[2],
        "problem",
        "high" if reason[0] != "cache-eviction" else "medium",
        f"{f.share(overall)} of the tokens that {len(turns):,} turns could have reused were "
        f"cached; {f.share(float((kept < LOST_TURN).mean()))} of the turns lost more than half. "
        f"{f.number(lost)} tokens were computed again{price}.",
        reason[3],
        arm.arm.name,
        tuple(worst["file_row"].astype(int)),
    )


def _eligible(arm: ArmResults) -> pd.DataFrame:
    turns = arm.arm.turns()
    known = turns[["eligible_tokens", "cached_tokens", "prompt_tokens"]].notna().all(axis=1)
    return turns[turns["counted"].to_numpy() & known.to_numpy()]


def _is_off(arm: ArmResults, _: pd.DataFrame, kept: np.ndarray) -> bool:
    switch = switch_setting(arm.arm.settings, "enable_prefix_caching")
    return switch is False or (switch is None and not kept.any())


def _is_short(arm: ArmResults, turns: pd.DataFrame, _: np.ndarray) -> bool:
    block = whole_setting(arm.arm.settings, "block_size")
    return block is not None and float(turns["eligible_tokens"].median()) < 2 * block


def _is_dynamic(_: ArmResults, turns: pd.DataFrame, kept: np.ndarray) -> bool:
    """Nearly every turn loses its history, and the ones that waited least no less than others.

    A cache that evicts keeps the history of those who come back soon.
    """
    idle = turns["idle_s"].to_numpy()
    soon = kept[idle <= np.nanmedian(idle)]
    return float(np.median(kept)) < LOST_TURN and float(np.median(soon)) < LOST_TURN


def _always(*_: object) -> bool:
    return True


_Test = Callable[[ArmResults, pd.DataFrame, np.ndarray], bool]
_REASONS: tuple[tuple[str, _Test, str, str], ...] = (
    (
        "cache-off",
        _is_off,
        "Prefix caching is off",
        "Start the server with --enable-prefix-caching: later turns then compute only what they "
        "append, and their TTFT falls by nearly all of their prefill.",
    ),
    (
        "cache-block-too-large",
        _is_short,
        "Prompts are too short for the cache's blocks",
        "Only whole blocks are reused: a smaller --block-size lets short prompts hit.",
    ),
    (
        "cache-dynamic-prefix",
        _is_dynamic,
        "Something near the front of the prompt changes every turn",
        "Move dates, ids and anything else that changes behind the history, or take it out: "
        "blocks are found by the hash of everything before them. TTFT falls by nearly all of the "
        "prefill.",
    ),
    (
        "cache-eviction",
        _always,
        "The prefix cache evicts sessions before they come back",
        "Give the KV cache more room (--gpu-memory-utilization, FP8 KV cache, CPU offload), run "
        "fewer sessions on a replica, or route sessions to the replica that holds them.",
    ),
)


def off_plan(arm: ArmResults) -> Finding | None:
    """The reported hit ratio of later turns is not the planned one, and no other finding says so.

    The plan is what a cache without end could reuse (`planned_prefix_tokens`).
    """
    turns = _eligible(arm)
    turns = turns[turns["planned_prefix_tokens"].notna().to_numpy()]
    if len(turns) < MIN_ELIGIBLE_TURNS:
        return None
    prompt = float(turns["prompt_tokens"].sum())
    planned = float(turns["planned_prefix_tokens"].sum()) / prompt
    reported = float(turns["cached_tokens"].sum()) / prompt
    short = turns["planned_prefix_tokens"] - turns["cached_tokens"]
    if abs(planned - reported) <= OFF_PLAN or (reported < planned and cache_not_effective(arm)):
        return None
    worst = turns.assign(short=short.abs()).nlargest(3, "short")
    evidence = (
        f"{f.share(reported)} of the prompt tokens of {len(turns):,} later turns was cached; "
        f"{f.share(planned)} was planned."
    )
    rows = tuple(worst["file_row"].astype(int))
    if reported > planned:
        return Finding(
            "hits-above-plan",
            "More was cached than the plan shares",
            "problem",
            "medium",
            evidence,
            "Somebody else sends the same prompts, or an earlier run left them in the cache: "
            "restart the server or give the run another --run-salt.",
            arm.arm.name,
            rows,
        )
    lost = turns["cached_tokens"] < LOST_TURN * turns["planned_prefix_tokens"]
    by_eviction = float(short[lost].sum()) > 0.5 * float(short.clip(lower=0).sum())
    return Finding(
        "hits-below-plan",
        "Less was cached than planned",
        "hint",
        "medium",
        f"{evidence} {int(lost.sum())} turns lost more than half of what they share.",
        "A few turns lose nearly all: the cache evicts some sessions, so give it more room or "
        "run fewer sessions."
        if by_eviction
        else "Every turn loses a little: the server's chat template or a gateway changes the end "
        "of the history, or answers re-encode to other tokens than were generated.",
        arm.arm.name,
        rows,
    )


def kv_pressure(arm: ArmResults) -> Finding | None:
    """Preemptions, or a KV cache so full that they are near."""
    worst = max(arm.pressure, key=lambda p: p.preemptions_per_100 or 0.0)
    if worst.over_memory_limit:
        return Finding(
            "preemption-storm",
            "The KV cache is too small for what runs at once",
            "problem",
            "high",
            f"{f.number(worst.preemptions_per_100)} preemptions for 100 finished requests "
            f"(bound {MAX_PREEMPTIONS_PER_100:g}); KV use up to {f.share(worst.kv_usage_max)}. "
            "Preempted requests compute their prompt again.",
            "Lower --max-num-seqs or the number of sessions per replica"
            + (f" to below {worst.sessions_that_fit}" if worst.sessions_that_fit else "")
            + ", or add KV memory: gaps of seconds inside answers should go.",
            arm.arm.name,
        )
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
        arm.arm.name,
    )


def hits_not_reported(arm: ArmResults) -> Finding | None:
    """Neither usage nor counters say what was cached."""
    everything = arm.classes[-1]
    if everything.cache_hit.value is not None or not everything.successes:
        return None
    return Finding(
        "cache-unknown",
        "Cache hits are not reported",
        "hint",
        "high",
        "Neither the answers' usage nor /metrics say how many prompt tokens were cached.",
        "Start vLLM with --enable-prompt-tokens-details, and give the URL of /metrics.",
        arm.arm.name,
    )


RULES = (cache_not_effective, off_plan, kv_pressure, hits_not_reported)
