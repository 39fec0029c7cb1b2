"""How much of the context window a session has left."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from agentload.scenario.model import Scenario

_UNSURE_SHARE = 0.01  # of the tokens the server has not counted yet
_UNSURE_START_SHARE = 0.03  # of a first prompt, of which it has counted none


def room_left(max_model_len: int, prompt_tokens: int) -> int:
    """Tokens that an answer may have, by vLLM's rule prompt + max_tokens <= max_model_len."""
    return max(0, max_model_len - prompt_tokens)


@dataclass(frozen=True, slots=True)
class WindowRule:
    """The limits of a session's prompt in tokens; infinite where nothing limits it."""

    window: float
    end: float  # a longer prompt ends the session
    compact: float  # a prompt this long is compacted first
    hard: float  # the server refuses beyond

    def fits(self, prompt: float, uncounted: float, output_tokens: int) -> bool:
        """Whether the server takes the request; `uncounted` tokens of `prompt` are an estimate."""
        return prompt + _UNSURE_SHARE * uncounted + output_tokens <= self.hard

    def room(self, prompt: float, uncounted: float) -> int:
        """Output tokens that surely fit behind a prompt."""
        if math.isinf(self.hard):
            return sys.maxsize
        return room_left(int(self.hard), math.ceil(prompt + _UNSURE_SHARE * uncounted))

    @property
    def most_prompt(self) -> float:
        """Tokens of the longest first prompt; infinite without a limit."""
        return min(self.end, (1.0 - _UNSURE_START_SHARE) * self.hard)

    def most_output(self, first_prompt: float) -> int:
        """Output tokens that surely fit behind a first prompt, at least 1."""
        if math.isinf(self.hard):
            return sys.maxsize
        return max(1, int(self.hard - (1.0 + _UNSURE_START_SHARE) * first_prompt))


def window_rule(scenario: Scenario, max_model_len: int | None) -> WindowRule:
    """The limits of a scenario's sessions on a server with this context length."""
    hard = math.inf if max_model_len is None else float(max_model_len)
    wished = scenario.window.tokens
    window = min(hard, math.inf if wished is None else wished * scenario.context_scale)
    compaction = scenario.compaction
    return WindowRule(
        window=window,
        end=window * scenario.window.end_share,
        compact=window * compaction.trigger_share if compaction else math.inf,
        hard=hard,
    )


def misfit(scenario: Scenario, max_model_len: int | None) -> str | None:
    """Why the scenario cannot run with this context length, with the mend; None if it can."""
    if max_model_len is None:
        return None
    rule, longest = window_rule(scenario, max_model_len), _longest_first_prompt(scenario)
    if longest * scenario.context_scale <= rule.most_prompt:
        return None
    share = min(scenario.window.end_share, 1.0 - _UNSURE_START_SHARE)
    whole = scenario.window.tokens or longest  # so that sessions also have room to grow
    scale = max_model_len * min(share / longest, 1.0 / whole)
    return (
        f"scenario {scenario.name}: sessions start with up to"
        f" {longest * scenario.context_scale:,.0f} tokens, and of the {max_model_len:,} that the"
        f" server takes a first prompt may have {rule.most_prompt:,.0f} (window.end_share); set"
        f" context_scale to {_rounded_down(scale)} or less, or raise"
        f" --max-model-len"
    )


def _longest_first_prompt(scenario: Scenario) -> float:
    """Tokens before `context_scale`; of a draw without an upper bound its lower one counts."""
    start, prefix = scenario.start, scenario.prefix
    draws = [start.warm_tokens if start.mix.warm or start.mix.resumed_cold else None]
    draws.append(scenario.interference.prompt_tokens if scenario.interference else None)
    draws.append(scenario.subagents.start_tokens if scenario.subagents else None)
    bounds = [b for d in draws if d is not None for b in (d.lowest(), d.highest())]
    fixed = prefix.tools_tokens + prefix.system_tokens + prefix.group_tokens
    return max(fixed, *(bound for bound in bounds if math.isfinite(bound)), 1)


def _rounded_down(value: float) -> str:
    digits = 2 - math.floor(math.log10(value))
    return f"{math.floor(value * 10**digits) / 10**digits:g}"
