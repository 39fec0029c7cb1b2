"""Findings about the prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.finding import Confidence, Finding, rows_by
from analysis.pressure import switch_setting, whole_setting
from analysis.report import format as f
from analysis.results import ArmResults
from analysis.waterfall import prefill_s_per_token

MIN_ELIGIBLE_TURNS = 20
POOR_HIT = 0.9
LOST_TURN = 0.5  # a turn that kept less than this of what it could is one whose cache was lost
MAX_LOST_TURNS = 0.03
NEARLY_ALL = 0.95
FRONT_KEPT = 0.5  # of what sessions share: a cache that evicts keeps that, as all of them use it
PLANNED_LOSS = 0.5  # of the history that a scenario breaks by plan
OFF_PLAN = 0.02  # points of the hit ratio; blocks and the template cost less than one


def reusable_tokens(prompt_tokens: int, first_difference_at: int, block_size: int) -> int:
    """Tokens of a prompt that a cached one can give: whole blocks before the first difference.

    The last prompt token is always computed, so an identical prompt gives one block less.
    """
    return min(first_difference_at, prompt_tokens - 1) // block_size * block_size


@dataclass(frozen=True, slots=True)
class Reuse:
    """Counted turns that extend their session's turn before, and what became of its tokens.

    `reusable` is what the cache could have kept: no more than the scenario planned to share.
    `kept` is the cached share of that, 1 where there was nothing to keep.
    """

    turns: pd.DataFrame
    reusable: np.ndarray
    kept: np.ndarray

    @classmethod
    def of(cls, arm: ArmResults) -> Reuse:
        turns = arm.arm.turns()
        known = turns[["eligible_tokens", "cached_tokens", "prompt_tokens"]].notna().all(axis=1)
        turns = turns[turns["counted"].to_numpy() & known.to_numpy()]
        reusable = np.fmin(
            turns["eligible_tokens"].to_numpy(), turns["planned_prefix_tokens"].to_numpy()
        )
        kept = np.ones(len(turns))
        some = reusable > 0
        kept[some] = (turns["cached_tokens"].to_numpy()[some] / reusable[some]).clip(max=1.0)
        return cls(turns, reusable, kept)

    @property
    def overall(self) -> float:
        total = float(self.reusable.sum())
        return float((self.kept * self.reusable).sum()) / total if total else 1.0

    @property
    def lost_share(self) -> float:
        """Of the turns: those that lost more than half."""
        return float((self.kept < LOST_TURN).mean())

    @property
    def lost_tokens(self) -> float:
        return float(((1.0 - self.kept) * self.reusable).sum())


def cache_not_effective(arm: ArmResults) -> Finding | None:
    """Turns that extend an earlier one recompute it: one finding, with the likeliest reason."""
    reuse = Reuse.of(arm)
    if len(reuse.turns) < MIN_ELIGIBLE_TURNS:
        return None
    if reuse.overall >= POOR_HIT and reuse.lost_share <= MAX_LOST_TURNS:
        return None
    reason = next(r for r in _REASONS if r.holds(arm, reuse))
    cost = prefill_s_per_token(reuse.turns)
    a_turn = reuse.lost_tokens / len(reuse.turns)
    gain = (
        f"{f.number(a_turn)} tokens fewer to prefill a turn"
        if cost is None
        else f"TTFT of these turns falls by about {f.seconds(a_turn * cost)} on average"
    )
    return Finding(
        reason.name,
        reason.title,
        "problem",
        reason.confidence,
        f"{f.share(reuse.overall)} of the tokens that {len(reuse.turns):,} turns could have reused "
        f"were cached; {f.share(reuse.lost_share)} of the turns lost more than half. "
        f"{f.number(reuse.lost_tokens)} tokens were computed again.",
        reason.advice,
        f"{gain}, and as much time becomes free for other turns.",
        arm.arm.name,
        rows_by(reuse.turns, (1.0 - reuse.kept) * reuse.reusable),
    )


def _is_off(arm: ArmResults, reuse: Reuse) -> bool:
    switch = switch_setting(arm.arm.settings, "enable_prefix_caching")
    return switch is False or (switch is None and not reuse.kept.any())


def _is_short(arm: ArmResults, reuse: Reuse) -> bool:
    block = whole_setting(arm.arm.settings, "block_size")
    return block is not None and float(reuse.turns["eligible_tokens"].median()) < 2 * block


def _is_dynamic(arm: ArmResults, reuse: Reuse) -> bool:
    """Nearly every turn loses its history, whatever its wait, and even what all sessions share.

    A cache that evicts keeps the history of those who come back soon, and the shared front longest.
    """
    if reuse.lost_share < NEARLY_ALL:
        return False
    turns = arm.arm.turns()
    shared = turns.loc[(turns["turn_class"] == "cold").to_numpy(), "planned_prefix_tokens"].median()
    if not shared > 0:
        return True
    return float(reuse.turns["cached_tokens"].median()) < FRONT_KEPT * float(shared)


def _always(*_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Reason:
    name: str
    holds: Callable[[ArmResults, Reuse], bool]
    confidence: Confidence
    title: str
    advice: str


_REASONS = (
    _Reason(
        "cache-off",
        _is_off,
        "high",
        "Prefix caching is off",
        "Start the server with --enable-prefix-caching: later turns then compute only what they "
        "append.",
    ),
    _Reason(
        "cache-block-too-large",
        _is_short,
        "high",
        "Prompts are too short for the cache's blocks",
        "Only whole blocks are reused: a smaller --block-size lets short prompts hit.",
    ),
    _Reason(
        "cache-dynamic-prefix",
        _is_dynamic,
        "high",
        "Something near the front of the prompt changes every turn",
        "The scenario did not plan this. Look for a date, an id or a header that a gateway or a "
        "template puts in front, and move it behind the history: blocks are found by the hash of "
        "everything before them.",
    ),
    _Reason(
        "cache-eviction",
        _always,
        "medium",
        "The prefix cache evicts sessions before they come back",
        "Give the KV cache more room (--gpu-memory-utilization, FP8 KV cache, CPU offload), run "
        "fewer sessions on a replica, or route sessions to the replica that holds them.",
    ),
)


def planned_break(arm: ArmResults) -> Finding | None:
    """The scenario itself changes prompts near their front: what is computed again was planned."""
    reuse = Reuse.of(arm)
    if len(reuse.turns) < MIN_ELIGIBLE_TURNS or cache_not_effective(arm) is not None:
        return None
    held = float(reuse.turns["eligible_tokens"].sum())
    planned = float(reuse.reusable.sum())
    if planned >= (1.0 - PLANNED_LOSS) * held:
        return None
    cost = prefill_s_per_token(reuse.turns)
    a_turn = (held - planned) / len(reuse.turns)
    price = "" if cost is None else f", about {f.seconds(a_turn * cost)} of prefill"
    return Finding(
        "cache-dynamic-prefix",
        "The scenario changes its prompts near the front, as planned",
        "expected",
        "high",
        f"Of the tokens that {len(reuse.turns):,} turns had in common with the turn before, the "
        f"plan lets the cache reuse {f.share(planned / held)}; it reused "
        f"{f.share(float(reuse.turns['cached_tokens'].sum()) / held)}.",
        "Nothing to mend on the server. Compare with an arm whose prefix stays as it is "
        "(prefix.dynamic: none) to see what the change costs.",
        f"A stable prefix would save {f.number(a_turn)} tokens a turn{price}.",
        arm.arm.name,
        rows_by(reuse.turns, reuse.turns["eligible_tokens"] - reuse.reusable),
    )


def off_plan(arm: ArmResults) -> Finding | None:
    """The reported hit ratio of later turns is not the planned one, and no other finding says so.

    The plan is what a cache without end could reuse (`planned_prefix_tokens`).
    """
    turns = Reuse.of(arm).turns
    turns = turns[turns["planned_prefix_tokens"].notna().to_numpy()]
    if len(turns) < MIN_ELIGIBLE_TURNS:
        return None
    prompt = float(turns["prompt_tokens"].sum())
    planned = float(turns["planned_prefix_tokens"].sum()) / prompt
    reported = float(turns["cached_tokens"].sum()) / prompt
    short = turns["planned_prefix_tokens"] - turns["cached_tokens"]
    if abs(planned - reported) <= OFF_PLAN or (reported < planned and cache_not_effective(arm)):
        return None
    evidence = (
        f"{f.share(reported)} of the prompt tokens of {len(turns):,} later turns was cached; "
        f"{f.share(planned)} was planned."
    )
    if reported > planned:
        return _above_plan(arm, turns, evidence, short)
    return _below_plan(arm, turns, evidence, short)


def _above_plan(arm: ArmResults, turns: pd.DataFrame, evidence: str, short: pd.Series) -> Finding:
    return Finding(
        "hits-above-plan",
        "More was cached than the plan shares",
        "problem",
        "medium",
        evidence,
        "Somebody else sends the same prompts, or an earlier run left them in the cache: "
        "restart the server or give the run another --run-salt.",
        f"TTFT rises to what the plan measures: {f.number(-float(short.sum()) / len(turns))} more "
        "tokens to prefill a turn.",
        arm.arm.name,
        rows_by(turns, -short),
    )


def _below_plan(arm: ArmResults, turns: pd.DataFrame, evidence: str, short: pd.Series) -> Finding:
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
        f"{f.number(float(short.clip(lower=0).sum()) / len(turns))} tokens fewer to prefill a turn "
        "on average.",
        arm.arm.name,
        rows_by(turns, short),
    )


RULES = (cache_not_effective, planned_break, off_plan)
