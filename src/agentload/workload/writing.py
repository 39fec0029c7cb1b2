"""Messages of a session, put together from slices of the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agentload.scenario.distributions import pick
from agentload.scenario.model import Content
from agentload.workload.content import Corpus
from agentload.workload.text import escaped
from agentload.workload.tokens import Amounts, Ratios
from agentload.workload.turn import Message, Role

_BRIEF = "Answer in a few words."
_TRIES = 40  # to find a place where the text ends inside a word


@dataclass(frozen=True, slots=True)
class Draft:
    """A message with what it is made of."""

    message: Message
    amounts: Amounts

    @property
    def chars(self) -> int:
        return sum(chars for _, chars in self.amounts)


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the text of a kind, where the next message goes on."""

    kind: str
    position: int


class Writer:
    """Draws text of the kinds a scenario names."""

    __slots__ = ("_content", "_corpus", "_mixes", "_ratios")

    def __init__(self, content: Content, corpus: Corpus, ratios: Ratios) -> None:
        self._content = content
        self._corpus = corpus
        self._ratios = ratios
        self._mixes = {
            name: (tuple(mix), tuple(mix.values()))
            for name, mix in (
                ("tool", content.tool_results),
                ("answer", content.answers),
                ("user", content.user_text),
            )
        }

    def kind(self, mix: str, rng: Random) -> str:
        """A kind of content for a `tool` result, an `answer` or a `user` text."""
        kinds, weights = self._mixes[mix]
        return kinds[pick(weights, rng)]

    def user(
        self,
        mix: str,
        chars: int,
        rng: Random,
        *,
        parts: int = 1,
        head: str = "",
        only: str | None = None,
    ) -> Draft:
        """A message of the user's side: `head`, then exactly `chars` characters.

        They are of kind `only`, or of kinds drawn from the mix for each of the `parts`.
        Tool results go as the user's text too: a template may refuse the role `tool`, or refuse
        two messages of one role in a row, and the number of tokens is the same.
        """
        pieces: list[bytes | memoryview] = [escaped(head)] if head else []
        amounts: list[tuple[str, int]] = [("prose", len(head))] if head else []
        foreign = round(chars * self._content.non_ascii_share)
        sizes = [(only or self.kind(mix, rng), size) for size in _parts(chars - foreign, parts)]
        for kind, size in (*sizes, ("non_ascii", foreign)):
            if size:
                text = self._corpus.text(kind)
                pieces.extend(text.slices(text.random_line(rng), size))
                amounts.append((kind, size))
        return _draft("user", pieces, amounts)

    def brief_system(self) -> Draft:
        """A system message for prompts too short for the shared prefix."""
        return _draft("system", (escaped(_BRIEF),), [("prose", len(_BRIEF))])

    def amounts(self, kind: str, chars: int) -> Amounts:
        """What a message of one kind and this length is made of."""
        foreign = round(chars * self._content.non_ascii_share)
        return ((kind, chars - foreign), ("non_ascii", foreign))

    def ending_inside_word(self, mix: str, chars: int, rng: Random) -> tuple[Draft, Place]:
        """A text of exactly `chars` characters that ends inside a word, with where it stopped."""
        kind = self.kind(mix, rng)
        text = self._corpus.text(kind)
        for _ in range(_TRIES):
            start = text.random_line(rng)
            if text.inside_word(start + chars):
                break
        draft = _draft("user", text.slices(start, chars), [(kind, chars)])
        return draft, Place(kind, (start + chars) % text.chars)

    def answer(self, tokens: float, rng: Random, after: Place | None = None) -> Draft:
        """A canned answer of about `tokens` tokens, going on at `after` when given."""
        kind = after.kind if after else self.kind("answer", rng)
        text = self._corpus.text(kind)
        start = after.position if after else text.random_line(rng)
        chars = self._ratios.chars(kind, tokens)
        return _draft("assistant", text.slices(start, chars), [(kind, chars)])

    def answer_of(self, text: str) -> Draft:
        """The text the model itself gave."""
        return _draft("assistant", (escaped(text),), [("prose", len(text))])


def _parts(chars: int, parts: int) -> list[int]:
    """`chars` in up to `parts` sizes that differ by 1 at most, none of them 0."""
    parts = max(1, min(parts, chars))
    small, rest = divmod(chars, parts)
    return [small + (i < rest) for i in range(parts)] if chars else []


def _draft(
    role: Role,
    pieces: list[bytes | memoryview] | tuple[bytes | memoryview, ...],
    amounts: list[tuple[str, int]],
) -> Draft:
    return Draft(Message(role, tuple(pieces)), tuple(amounts))
