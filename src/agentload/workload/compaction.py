"""The two calls of a compaction: ask for a summary, then go on from it."""

from __future__ import annotations

from random import Random

from agentload.scenario.model import Compaction
from agentload.workload.basis import Basis
from agentload.workload.chat import Chat, Step
from agentload.workload.drawing import draw_output, draw_wait, whole

_REQUEST_CHARS = 600  # of the text that asks for a summary
_LEAST_SUMMARY_TOKENS = 100.0  # of what stands for a summary that was never asked for
_BELOW_TRIGGER = 0.9  # a rebuilt prompt stays this far below the trigger, else it would loop


def summary_step(basis: Basis, chat: Chat, rng: Random) -> Step | None:
    """The call with the whole context; None when the server would not take it."""
    tokens = int(whole(_settings(basis).summary_tokens, rng))
    request = basis.writer.user("user", _REQUEST_CHARS, rng)
    wait = draw_wait(basis.scenario, False, 1, rng)
    step = Step("tool", len(chat.ledger), [request], tokens, float(tokens), wait)
    _, known, uncounted = chat.size(step)
    return step if basis.window.fits(known, uncounted, tokens) else None


def rebuild_step(basis: Basis, chat: Chat, summary_tokens: float, rng: Random) -> Step:
    """A prompt behind the shared prefix that stands for the conversation so far."""
    chat.generation += 1
    output, answer = draw_output(basis.scenario, rng)
    wished = _settings(basis).rebuild_tokens.draw(rng) * basis.scenario.context_scale
    most = min(_BELOW_TRIGGER * basis.window.compact, basis.window.most_prompt)
    tokens = min(wished, most) - chat.ledger.planned(1)
    drafts = chat.converse(tokens, rng, 1, max(summary_tokens, _LEAST_SUMMARY_TOKENS))
    return Step("rebuild", 1, drafts, output, answer, rebuilds=True).with_output(
        basis.window.most_output(min(wished, most))
    )


def _settings(basis: Basis) -> Compaction:
    compaction = basis.scenario.compaction
    if compaction is None:
        raise ValueError(f"scenario {basis.scenario.name} has no compaction")
    return compaction
