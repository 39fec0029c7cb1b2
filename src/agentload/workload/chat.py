"""The messages of one session: what stays of them, what a turn sends, what of it is cached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from random import Random

from agentload.workload.basis import Basis
from agentload.workload.opening import conversation
from agentload.workload.origin import Origin
from agentload.workload.prefix import Front
from agentload.workload.tokens import Ledger
from agentload.workload.turn import ChildPlan, Message, Turn, TurnClass, WaitKind
from agentload.workload.writing import Draft, Place


@dataclass(frozen=True, slots=True)
class Step:
    """A turn while it is put together."""

    turn_class: TurnClass
    keep: int  # messages that stay
    drafts: list[Draft]
    output_tokens: int
    answer_tokens: float  # of the answer that joins the history
    wait: tuple[WaitKind, float] = ("none", 0.0)
    abort_after_s: float | None = None
    spawns: tuple[ChildPlan, ...] = ()
    place: Place | None = None  # where the answer goes on, when a text ends inside a word
    rebuilds: bool = False  # after a compaction
    at_s: float | None = None

    def with_output(self, tokens: int) -> Step:
        """The same step with its answer held at `tokens`."""
        return replace(
            self,
            output_tokens=min(tokens, self.output_tokens),
            answer_tokens=min(tokens, self.answer_tokens),
        )


class Chat:
    """History of one session, as sizes; the messages themselves only where all are sent again."""

    __slots__ = ("_basis", "_cacheable", "_dynamic", "_history", "_origin", "generation", "ledger")

    def __init__(self, basis: Basis, origin: Origin) -> None:
        self._basis = basis
        self._origin = origin
        plain = origin.state in ("child", "one_shot")
        self._dynamic = "none" if plain else basis.scenario.prefix.dynamic
        self._history: list[Message] = []
        self._cacheable = 0.0
        self.ledger = Ledger(basis.ratios)
        self.generation = 0  # of the salt: how often the conversation began anew

    def front(self, rng: Random) -> Front:
        """The system message of the next turn."""
        origin, prefix = self._origin, self._basis.prefix
        nonce = f"{rng.getrandbits(64):016x}"
        if origin.state == "child":
            return self._basis.child_prefix.stable(0)
        if origin.state == "one_shot" or self._dynamic == "head":
            return prefix.with_head(origin.group, nonce)
        if self._dynamic == "system_tail":
            return prefix.with_tail(origin.group, nonce)
        if self._dynamic == "tools_permuted":
            return prefix.permuted(origin.group, rng)
        return prefix.stable(origin.group)

    def salt(self, messages_before: int) -> str:
        """What a message behind so many others begins with; always of the same length.

        The first one behind the system message has a line no other session of the run has.
        """
        if messages_before != 1:
            return ""
        basis = self._basis
        text = f"{basis.scenario.seed}/{basis.run_salt}/{self._origin.key}/{self.generation}"
        return f"Session {hashlib.sha256(text.encode()).hexdigest()[:16]}\n"

    def converse(
        self, tokens: float, rng: Random, before: int, opening_tokens: float | None = None
    ) -> list[Draft]:
        """A made-up conversation of about `tokens` tokens that stands behind `before` messages."""
        head = self.salt(before)
        if opening_tokens is None:
            return conversation(self._basis, tokens, rng, head)
        return conversation(self._basis, tokens, rng, head, opening_tokens)

    def keep_for(self, share: float) -> int:
        """Messages within this share of the prompt, an odd number: the last one is an answer."""
        total = share * self.ledger.planned(len(self.ledger))
        odd = range(1, len(self.ledger), 2)
        return max((n for n in odd if self.ledger.planned(n) <= total), default=1)

    def size(self, step: Step) -> tuple[float, float, float]:
        """Tokens of the step's prompt: by plan, by reports, and how many of these are estimated."""
        ratios, ledger = self._basis.ratios, self.ledger
        planned, known = ledger.planned(step.keep), ledger.known(step.keep)
        for draft in step.drafts:
            planned += ratios.tokens(draft.amounts) + ratios.message_tokens
            known += ledger.estimate(draft.amounts)
        return planned, known, known - ledger.counted(step.keep)

    def cut(self, messages: int) -> None:
        """Forget all but the first `messages`."""
        self.ledger.cut(messages)
        del self._history[messages:]

    def push(self, draft: Draft) -> None:
        """Add a message to the history."""
        self.ledger.push(draft.amounts)
        if self._dynamic != "none":
            self._history.append(draft.message)

    def answered(self, prompt_tokens: int | None, live_tokens: float) -> None:
        """The server has the last prompt, and `live_tokens` of its answer, in its cache."""
        if prompt_tokens is not None:
            self.ledger.report(prompt_tokens)
        self._cacheable = self.ledger.known(len(self.ledger)) + live_tokens

    def turn(self, step: Step, index: int, rng: Random) -> Turn:
        """Take the step's messages into the history, and say what to send."""
        prefix_tokens = self._shared_tokens() if index == 0 else self._kept_tokens(step.keep)
        self.cut(step.keep)
        resent: tuple[Message, ...] = ()
        keep = step.keep
        if self._dynamic != "none" and index > 0:
            front = self.front(rng)
            scale = self.ledger.known(1) / self.ledger.planned(1)
            prefix_tokens = min(prefix_tokens, front.stable_tokens * scale)
            resent = (Message("system", front.pieces), *self._history[1:keep])
            keep = 0
        for draft in step.drafts:
            self.push(draft)
        prompt_tokens = round(self.ledger.known(len(self.ledger)))
        return Turn(
            session_id=self._origin.session_id,
            parent_session_id=self._origin.parent_session_id,
            turn_index=index,
            turn_class=step.turn_class,
            wait_kind=step.wait[0],
            wait_s=step.wait[1],
            keep_messages=keep,
            append=(*resent, *(draft.message for draft in step.drafts)),
            append_chars=sum(draft.chars for draft in step.drafts),
            output_tokens=step.output_tokens,
            planned_prompt_tokens=prompt_tokens,
            planned_prefix_tokens=min(round(prefix_tokens), prompt_tokens),
            abort_after_s=step.abort_after_s,
            spawns=step.spawns,
            at_s=step.at_s,
        )

    def _kept_tokens(self, keep: int) -> float:
        """What an endless cache holds of the messages that stay."""
        return min(self._cacheable, self.ledger.known(keep))

    def _shared_tokens(self) -> float:
        """What an endless cache holds of a first prompt, from sessions of lower indices."""
        origin, basis = self._origin, self._basis
        if origin.state == "one_shot" or origin.opens_run:
            return 0.0
        if origin.state == "child":
            return basis.child_prefix.stable(0).stable_tokens
        if self._dynamic in ("head", "tools_permuted"):
            return 0.0
        shared = basis.prefix.stable(origin.group).stable_tokens
        if origin.opens_group:
            shared -= basis.ratios.tokens((("prose", basis.prefix.group_chars),))
        return shared
