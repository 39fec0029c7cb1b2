"""What all sessions of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from agentload.scenario.model import Scenario
from agentload.workload.calibration import CharsPerToken, by_kind
from agentload.workload.content import Corpus
from agentload.workload.prefix import Prefix, make_child_prefix, make_prefix
from agentload.workload.tokens import CHAT_MESSAGE_TOKENS, Ratios
from agentload.workload.window import WindowRule, window_rule
from agentload.workload.writing import Writer

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
    chars_per_token: CharsPerToken,
    max_model_len: int | None,
    run_salt: str,
) -> Basis:
    """The basis of a run; kept in `corpus.derived`, so that asking again costs a look-up."""
    ratio = chars_per_token if isinstance(chars_per_token, float) else str(chars_per_token)
    key = ("basis", id(scenario), ratio, max_model_len, run_salt)
    known = cast(Basis | None, corpus.derived.get(key))
    if known is not None and known.scenario is scenario:
        return known
    # A text cut inside a word goes out without role marks, which would put a border there.
    plain = scenario.content.cut == "inside_word"
    ratios = Ratios(by_kind(scenario, chars_per_token), 0 if plain else CHAT_MESSAGE_TOKENS)
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
