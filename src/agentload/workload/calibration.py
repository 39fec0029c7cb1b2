"""The target's characters per token, measured on the kinds of text a scenario uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from agentload.scenario.model import Scenario
from agentload.workload.content import CHARS_PER_TOKEN, Corpus

CharsPerToken = float | Mapping[str, float]  # of the scenario's mix, or of each kind of content

_SAMPLE_CHARS = 8000  # of each kind: 1.5K to 6K tokens
_SLICE_CHARS = 400
_IN_ORDER = ("json", "prose")  # tool definitions and system text are taken from the start
# Shares of what a context holds, by its characters.
_MIX = {"tool_results": 0.8, "answers": 0.1, "user_text": 0.1}

Count = Callable[[list[bytes]], int | None]


def calibrate(
    scenario: Scenario, corpus: Corpus, max_model_len: int | None, count: Count
) -> dict[str, float] | None:
    """Characters per token of each kind that the scenario uses, as `count` has it.

    `count` gives the tokens of a text that comes as JSON-escaped pieces, None when it cannot; then
    the result is None. The samples do not depend on the seed.
    """
    measured = {}
    for kind in sorted(kinds_of(scenario)):
        chars = _SAMPLE_CHARS
        if max_model_len is not None:
            # half of the window at the kind's usual ratio: it may be twice as dense
            chars = min(chars, max(200, int(max_model_len * CHARS_PER_TOKEN[kind] / 2)))
        tokens = count([bytes(piece) for piece in _sample(corpus, kind, chars)])
        if tokens is None or tokens <= 0:
            return None
        measured[kind] = chars / tokens
    return measured


def kinds_of(scenario: Scenario) -> set[str]:
    """The kinds of content in the scenario's prompts."""
    return {"json", "prose"} | set(_shares(scenario))  # these two of the prefix


def by_kind(scenario: Scenario, chars_per_token: CharsPerToken) -> dict[str, float]:
    """Characters per token of every kind.

    One number for the mix moves the whole table of `content`; measured kinds stand as measured,
    and move those that were not measured by the mean of their own factors.
    """
    if isinstance(chars_per_token, Mapping):
        factors = [ratio / CHARS_PER_TOKEN[kind] for kind, ratio in chars_per_token.items()]
        level = sum(factors) / len(factors)
        return {kind: level * ratio for kind, ratio in CHARS_PER_TOKEN.items()} | {
            **chars_per_token
        }
    level = chars_per_token / mixed(scenario, CHARS_PER_TOKEN)
    return {kind: level * ratio for kind, ratio in CHARS_PER_TOKEN.items()}


def mixed(scenario: Scenario, chars_per_token: Mapping[str, float]) -> float:
    """The one number for the mix of the scenario's contexts that the numbers of its kinds give."""
    return 1.0 / sum(share / chars_per_token[kind] for kind, share in _shares(scenario).items())


def _shares(scenario: Scenario) -> dict[str, float]:
    """kind -> its share of the characters of a context; they add up to 1."""
    content = scenario.content
    shares: dict[str, float] = {}
    foreign = content.non_ascii_share
    for name, part in _MIX.items():
        weights: dict[str, float] = getattr(content, name)
        for kind, weight in weights.items():
            share = (1 - foreign) * part * weight / sum(weights.values())
            shares[kind] = shares.get(kind, 0.0) + share
    shares["non_ascii"] = foreign
    return {kind: share for kind, share in shares.items() if share > 0}


def _sample(corpus: Corpus, kind: str, chars: int) -> list[memoryview]:
    text, rng = corpus.text(kind), Random(f"calibration/{kind}")
    if kind in _IN_ORDER:
        return list(text.slices(0, chars))
    pieces: list[memoryview] = []
    for at in range(0, chars, _SLICE_CHARS):
        pieces += text.slices(text.random_line(rng), min(_SLICE_CHARS, chars - at))
    return pieces
