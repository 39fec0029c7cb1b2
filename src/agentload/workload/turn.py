"""One planned turn of a session, before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TurnClass = Literal["cold", "tool", "user", "child", "rebuild"]
WaitKind = Literal["none", "tool", "human"]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message whose content is kept as JSON-escaped UTF-8 pieces, without the quotes.

    Pieces are shared between sessions (slices of one corpus), so that a thousand sessions of
    100K tokens hold one copy of each byte; nothing of that size is serialised per turn.
    """

    role: Role
    pieces: tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """A subagent to start when its parent's turn completes; `Session.child` makes the session."""

    number: int  # among the children of the same turn, from 0
    turn_index: int  # of the parent's turn
    calls: int  # 0: as recorded


@dataclass(frozen=True, slots=True)
class Turn:
    """What the session sends next. `wait_s` counts from the completion of the turn before."""

    session_id: str
    parent_session_id: str | None
    turn_index: int
    turn_class: TurnClass
    wait_kind: WaitKind
    wait_s: float
    keep_messages: int  # messages of the history so far that stay; the rest is cut before `append`
    append: tuple[Message, ...]
    append_chars: int
    output_tokens: int
    planned_prompt_tokens: int
    planned_prefix_tokens: (
        int  # of the prompt, shared with an earlier prompt of this run's sessions
    )
    abort_after_s: float | None = None  # the human interrupts this long after the first token
    spawns: tuple[ChildPlan, ...] = ()  # run after this turn; the next one waits for all of them
    at_s: float | None = None  # since the stages began: send then, or at once when that is past
