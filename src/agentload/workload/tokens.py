"""Token estimates of a session's prompt, corrected by what the server reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Amounts = tuple[tuple[str, int], ...]  # (kind of content, characters)

CHAT_MESSAGE_TOKENS = 4  # role markers of one message in a ChatML-like template
_TRUST_TOKENS = 200.0  # an increment of this size corrects a kind's ratio by half of its error


@dataclass(frozen=True, slots=True)
class Ratios:
    """The target's characters per token of each kind of content.

    Fixed for a run: the text of turns follows from it, so it never learns from reports.
    """

    by_kind: Mapping[str, float]
    message_tokens: int = CHAT_MESSAGE_TOKENS

    def tokens(self, amounts: Amounts) -> float:
        """Estimated tokens of a text, without the markers around a message."""
        by_kind = self.by_kind
        return sum(chars / by_kind[kind] for kind, chars in amounts)

    def chars(self, kind: str, tokens: float) -> int:
        """Characters of a kind that come to about this many tokens, at least 1."""
        return max(1, round(tokens * self.by_kind[kind]))


class Ledger:
    """Tokens of the prompt after each message of one session.

    `planned(n)` follows `Ratios` alone, so it is the same whatever the server says; `known(n)` is
    the last report plus an estimate of what came after it, with the ratio of each kind of content
    corrected by the reports so far. Both count from the prompt's first token; n is a number of
    messages.
    """

    __slots__ = ("_factor", "_known", "_parts", "_planned", "_ratios", "_reported")

    def __init__(self, ratios: Ratios) -> None:
        self._ratios = ratios
        self._planned = [0.0]
        self._known = [0.0]
        self._parts: list[Amounts] = []  # of the messages after the last report
        self._factor: dict[str, float] = {}  # kind -> reported / estimated
        self._reported = 0  # messages covered by the last report that still stand

    def __len__(self) -> int:
        return len(self._planned) - 1

    def planned(self, messages: int) -> float:
        return self._planned[messages]

    def known(self, messages: int) -> float:
        return self._known[messages]

    def counted(self, messages: int) -> float:
        """Tokens of the first `messages` that a report covers."""
        return self._known[min(messages, self._reported)]

    def estimate(self, amounts: Amounts) -> float:
        """Tokens of a further message, by the corrected ratios."""
        ratios, default = self._ratios, self._factor.get("", 1.0)
        return ratios.message_tokens + sum(
            self._factor.get(kind, default) * ratios.tokens(((kind, chars),))
            for kind, chars in amounts
        )

    def push(self, amounts: Amounts) -> None:
        """Add a message."""
        tokens = self._ratios.tokens(amounts) + self._ratios.message_tokens
        self._planned.append(self._planned[-1] + tokens)
        self._known.append(self._known[-1] + self.estimate(amounts))
        self._parts.append(amounts)

    def cut(self, messages: int) -> None:
        """Keep the first `messages` only."""
        del self._planned[messages + 1 :]
        del self._known[messages + 1 :]
        self._reported = min(self._reported, messages)
        del self._parts[messages - self._reported :]

    def report(self, prompt_tokens: int) -> None:
        """The server counted this many tokens in the prompt of all messages so far."""
        base = self._known[self._reported]
        estimated, actual = self._known[-1] - base, prompt_tokens - base
        if estimated > 0 and actual > 0:
            self._correct(actual / estimated, estimated)
            for i in range(self._reported + 1, len(self._known)):
                self._known[i] = base + (self._known[i] - base) * actual / estimated
        self._known[-1] = float(prompt_tokens)
        self._reported = len(self)
        self._parts.clear()

    def _correct(self, ratio: float, estimated: float) -> None:
        """Move the ratio of each kind that was added, by its share of the increment."""
        ratio = min(4.0, max(0.25, ratio))
        if not self._factor:  # the first prompt sets the level of all kinds
            self._factor[""] = ratio
            return
        trust = estimated / (estimated + _TRUST_TOKENS)
        tokens: dict[str, float] = {}
        for amounts in self._parts:
            for kind, chars in amounts:
                tokens[kind] = tokens.get(kind, 0.0) + self._ratios.tokens(((kind, chars),))
        total = sum(tokens.values()) or 1.0
        for kind, part in tokens.items():
            old = self._factor.get(kind, self._factor[""])
            self._factor[kind] = old * (1.0 + trust * part / total * (ratio - 1.0))
