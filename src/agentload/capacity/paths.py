"""Prompts of a session as paths of the prefix tree, from what each reuses of the ones before."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentload.sim.core import Turn

Piece = tuple[Hashable, int]


@dataclass(frozen=True, slots=True)
class Reusing:
    """One turn's tokens; `reused_tokens` of its prompt stood in the session's texts before."""

    prompt_tokens: int
    output_tokens: int
    reused_tokens: int


def paths(
    session: Hashable,
    turns: Sequence[Reusing],
    front_tokens: int,
    block_size: int,
    front_name: Hashable = "front",
) -> list[Turn]:
    """A session's turns as the core takes them; waits between them are none.

    A turn's own text is its prompt beyond what it reused, and its answer. Each text is cut where a
    later prompt leaves it, so that equal names are equal text: a hit can reach into an answer. The
    first `front_tokens` are common to all sessions with this `front_name`.
    """
    front = min(front_tokens, turns[0].prompt_tokens - 1) // block_size * block_size
    before: list[tuple[int, int]] = []  # (text, tokens of it), from the prompt's start
    written: list[list[tuple[int, int]]] = []
    cuts: dict[int, set[int]] = {}
    for number, turn in enumerate(turns):
        there = front + sum(tokens for _, tokens in before)  # turns in between may not be known
        keep = min(turn.reused_tokens, turn.prompt_tokens - 1, there) // block_size * block_size
        kept = _front_of(before, keep - front)
        for text, tokens in kept:
            cuts.setdefault(text, set()).add(tokens)
        own = turn.prompt_tokens - front - sum(tokens for _, tokens in kept)
        written.append([*kept, (number, own)])
        before = [*kept, (number, own + turn.output_tokens)]
    fronts: list[Piece] = [((front_name, front), front)] if front else []
    return [
        Turn((*fronts, *_pieces(session, text, cuts)), turn.output_tokens)
        for text, turn in zip(written, turns, strict=True)
    ]


def _front_of(texts: list[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    kept = []
    for text, length in texts:
        if tokens <= 0:
            break
        kept.append((text, min(length, tokens)))
        tokens -= length
    return kept


def _pieces(
    session: Hashable, written: list[tuple[int, int]], cuts: dict[int, set[int]]
) -> list[Piece]:
    found: list[Piece] = []
    for text, tokens in written:
        inside = sorted(cut for cut in cuts.get(text, ()) if cut < tokens)
        for low, high in pairwise([0, *inside, tokens]):
            found.append(((session, text, low), high - low))
    return found
