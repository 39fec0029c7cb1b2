"""The conversation a session starts with, or is rebuilt to."""

from __future__ import annotations

from random import Random

from agentload.workload.basis import Basis
from agentload.workload.writing import Draft

_TASK_TOKENS = 100.0  # the request that opens a conversation
_ANSWER_TOKENS = (40.0, 300.0)  # of the answers in a starting history
_LEAST_TOKENS = 16.0


def conversation(
    basis: Basis, tokens: float, rng: Random, head: str = "", opening_tokens: float = _TASK_TOKENS
) -> list[Draft]:
    """Messages of user and assistant in turn, first and last the user's, of about `tokens` tokens.

    The first begins with `head`. Tokens are those of `Ratios`, so the text does not depend on
    what a server reports.
    """
    ratios, writer = basis.ratios, basis.writer
    marker = ratios.message_tokens
    left = max(_LEAST_TOKENS, tokens - marker - ratios.tokens((("prose", len(head)),)))
    least = 2 * (marker + _LEAST_TOKENS)  # of a further pair of messages
    opening = left if left - opening_tokens <= least else opening_tokens
    drafts = [writer.user("user", ratios.chars("prose", opening), rng, head=head, only="prose")]
    left -= opening
    while left > least:
        answer = writer.answer(min(rng.uniform(*_ANSWER_TOKENS), left / 4), rng)
        left -= ratios.tokens(answer.amounts) + marker
        result = _tool_result(basis, left - marker, least, rng)
        left -= ratios.tokens(result.amounts) + marker
        drafts += [answer, result]
    return drafts


def _tool_result(basis: Basis, most_tokens: float, least_rest: float, rng: Random) -> Draft:
    """A tool result as the scenario draws them, or all of `most_tokens` if too few are left."""
    writer, ratios = basis.writer, basis.ratios
    chars = max(1, round(basis.scenario.start.message_chars.draw(rng)))
    kind = writer.kind("tool", rng)
    tokens = ratios.tokens(writer.amounts(kind, chars))
    if tokens > most_tokens - least_rest:
        chars = max(1, round(chars * most_tokens / tokens))
    return writer.user("tool", chars, rng, only=kind)
