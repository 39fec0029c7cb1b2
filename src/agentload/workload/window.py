"""How much of the context window a session has left."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentload.scenario.model import Scenario

_UNSURE_SHARE = 0.01  # of the tokens the server has not counted yet


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
        """Output tokens that surely fit."""
        if math.isinf(self.hard):
            raise ValueError("room without a limit")
        return room_left(int(self.hard), math.ceil(prompt + _UNSURE_SHARE * uncounted))


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
    rule = window_rule(scenario, max_model_len)
    fixed = scenario.prefix.tools_tokens + scenario.prefix.system_tokens
    wished = [float(fixed + scenario.prefix.group_tokens)]
    start = scenario.start
    if start.warm_tokens is not None and (start.mix.warm or start.mix.resumed_cold):
        wished.append(start.warm_tokens.lowest())
    needed = max(wished) * scenario.context_scale
    if needed + scenario.turns.output_tokens.lowest() <= rule.end:
        return None
    scale = 0.8 * max_model_len * scenario.window.end_share / max(wished)
    return (
        f"scenario {scenario.name}: sessions start with at least {needed:,.0f} tokens, and the"
        f" server takes {max_model_len:,} (of which window.end_share lets a prompt have"
        f" {rule.end:,.0f}); set context_scale to {scale:.3g} or less, or raise --max-model-len"
    )
