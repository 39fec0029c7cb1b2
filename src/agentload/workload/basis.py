"""What all sessions of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import cast

from agentload.scenario.model import Scenario
from agentload.workload.content import Corpus
from agentload.workload.prefix import Prefix, make_child_prefix, make_prefix
from agentload.workload.tokens import (
    CHAT_MESSAGE_TOKENS,
    Amounts,
    Ratios,
    relative_chars_per_token,
)
from agentload.workload.turn import Message
from agentload.workload.window import WindowRule, window_rule
from agentload.workload.writing import Draft, Writer

_SAMPLE_MESSAGES = 40
MIN_PERMUTED_TOOLS = 4


@dataclass(frozen=True, slots=True)
class Basis:
    """Scenario, text and limits; built once for each run, then shared by all its sessions."""

    scenario: Scenario
    ratios: Ratios
    writer: Writer
    prefix: Prefix
    child_prefix: Prefix
    window: WindowRule
    max_model_len: int | None
    run_salt: str


def basis(
    scenario: Scenario,
    corpus: Corpus,
    chars_per_token: float,
    max_model_len: int | None,
    run_salt: str,
) -> Basis:
    """The basis of a run; kept in `corpus.derived`, so that asking again costs a look-up."""
    key = ("basis", id(scenario), chars_per_token, max_model_len, run_salt)
    known = cast(Basis | None, corpus.derived.get(key))
    if known is not None and known.scenario is scenario:
        return known
    level = chars_per_token / relative_chars_per_token(_sample(scenario, corpus, 40_000)[1])
    # A text cut inside a word goes out without role marks, which would put a border there.
    plain = scenario.content.cut == "inside_word"
    ratios = Ratios(level, 0 if plain else CHAT_MESSAGE_TOKENS)
    prefix = make_prefix(scenario, corpus, ratios, run_salt)
    if scenario.prefix.dynamic == "tools_permuted" and len(prefix.tools) < MIN_PERMUTED_TOOLS:
        raise ValueError(
            f"prefix.dynamic tools_permuted: only {len(prefix.tools)} tool definitions fit in"
            f" prefix.tools_tokens x context_scale; raise one of them"
        )
    made = Basis(
        scenario=scenario,
        ratios=ratios,
        writer=Writer(scenario.content, corpus, ratios),
        prefix=prefix,
        child_prefix=make_child_prefix(scenario, corpus, ratios, run_salt),
        window=window_rule(scenario, max_model_len),
        max_model_len=max_model_len,
        run_salt=run_salt,
    )
    corpus.derived[key] = made
    return made


def calibration_sample(
    scenario: Scenario, corpus: Corpus, chars: int = 40_000
) -> tuple[tuple[Message, ...], int]:
    """Text in the mix of the scenario's contexts, to be sent once; with its characters.

    `chars_per_token` is these characters / the prompt tokens the server reports for it. It does
    not depend on the seed.
    """
    drafts, _ = _sample(scenario, corpus, chars)
    message = Message("user", tuple(p for draft in drafts for p in draft.message.pieces))
    return (message,), sum(draft.chars for draft in drafts)


def _sample(scenario: Scenario, corpus: Corpus, chars: int) -> tuple[list[Draft], Amounts]:
    writer, rng = Writer(scenario.content, corpus, Ratios(1.0)), Random("calibration")
    size = max(1, chars // _SAMPLE_MESSAGES)
    mixes = ("tool", "tool", "tool", "tool", "tool", "tool", "tool", "tool", "answer", "user")
    drafts = [
        writer.user(mixes[i % len(mixes)], size, rng)
        for i in range(min(_SAMPLE_MESSAGES, max(1, chars)))
    ]
    return drafts, tuple(amount for draft in drafts for amount in draft.amounts)
