"""Request bodies that only grow: the JSON of a session's history, kept as shared buffers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentload.workload.turn import Message, Role

Buffer = bytes | memoryview
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


def dumps(value: object) -> bytes:
    """Compact JSON in UTF-8; a value JSON cannot carry (NaN, an object) is a `ValueError`."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except TypeError as error:
        raise ValueError(str(error)) from None


class _Rope:
    """A growing list of buffers that remembers where each message ends.

    The buffers of a message are shared between sessions and never joined: a thousand sessions of
    100K tokens hold one copy of each byte.
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._ends: list[tuple[int, int]] = [(0, 0)]  # (buffers, bytes) up to a message's end

    def append(self, buffers: Iterable[Buffer]) -> None:
        size = self._ends[-1][1]
        for buffer in buffers:
            self.buffers.append(buffer)
            size += len(buffer)
        self._ends.append((len(self.buffers), size))

    def truncate(self, keep: int) -> None:
        if not 0 <= keep <= self.count:
            raise ValueError(f"cannot keep {keep} of {self.count} messages")
        del self._ends[keep + 1 :]
        del self.buffers[self._ends[-1][0] :]

    @property
    def count(self) -> int:
        return len(self._ends) - 1

    @property
    def size(self) -> int:
        return self._ends[-1][1]


class PromptBody:
    """The body of a chat completion: fixed parameters, the turn's parameters, messages last.

    `params` (model, temperature, tools, ...) are serialised once. `set_turn` replaces the turn's
    own parameters (max_tokens, ignore_eos, ...). Streaming with usage is always asked for;
    `continuous_usage` asks for running counts on every chunk as well.
    """

    path: ClassVar[str] = "/chat/completions"
    _opening: ClassVar[bytes] = b',"messages":['
    _first: ClassVar[dict[Role, bytes]] = {
        role: b'{"role":"%b","content":"' % role.encode() for role in _ROLES
    }
    # One buffer ends a message and begins the next: each costs time in the kernel and here.
    _between: ClassVar[dict[Role, bytes]] = {role: b'"},' + first for role, first in _first.items()}
    _closing: ClassVar[bytes] = b'"}]}'
    _closing_of_none: ClassVar[bytes] = b"]}"

    def __init__(self, params: Mapping[str, Any], *, continuous_usage: bool = False) -> None:
        options = {"include_usage": True}
        if continuous_usage:
            options["continuous_usage_stats"] = True
        fixed = {**params, "stream": True, "stream_options": options}
        self._fixed = dumps(fixed)[:-1]
        self._turn = b""
        self._rope = _Rope()

    def set_turn(self, params: Mapping[str, Any]) -> None:
        """Set the parameters of the next request; those of the one before are dropped."""
        self._turn = b"," + dumps(dict(params))[1:-1] if params else b""

    def add(self, messages: Iterable[Message]) -> None:
        """Append messages to the history; nothing that is already there is touched."""
        for message in messages:
            before = self._between if self._rope.count else self._first
            self._rope.append((before[message.role], *message.pieces))

    def truncate(self, keep_messages: int) -> None:
        """Keep the first messages; `ValueError` when there are fewer."""
        self._rope.truncate(keep_messages)

    def prepare(self) -> None:
        """Do what has to be done before the next request can be sent: here nothing."""

    def buffers(self) -> list[Buffer]:
        """The whole body, in order; joined, it is one JSON object."""
        head = b"%b%b%b" % (self._fixed, self._turn, self._opening)
        return [head, *self._rope.buffers, self._end]

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the next request's prompt where they are known before it is sent, else None."""
        return None

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        head = len(self._fixed) + len(self._turn) + len(self._opening)
        return head + self._rope.size + len(self._end)

    @property
    def _end(self) -> bytes:
        return self._closing if self._rope.count else self._closing_of_none

    @property
    def message_count(self) -> int:
        return self._rope.count


class TextBody(PromptBody):
    """The body of a text completion: the same history as one string, with ChatML role marks."""

    path: ClassVar[str] = "/completions"
    _opening = b',"prompt":"'
    _first: ClassVar[dict[Role, bytes]] = {
        role: b"<|im_start|>%b\\n" % role.encode() for role in _ROLES
    }
    _after: ClassVar[bytes] = b"<|im_end|>\\n"
    _between: ClassVar[dict[Role, bytes]] = {
        role: b"<|im_end|>\\n<|im_start|>%b\\n" % role.encode() for role in _ROLES
    }
    _closing = b'<|im_end|>\\n<|im_start|>assistant\\n"}'
    _closing_of_none = b'<|im_start|>assistant\\n"}'


class PlainTextBody(TextBody):
    """The same history as one unbroken string: a mark would end the word that a message cuts."""

    _first: ClassVar[dict[Role, bytes]] = dict.fromkeys(_ROLES, b"")
    _between: ClassVar[dict[Role, bytes]] = _first
    _closing = b'"}'
    _closing_of_none = b'"}'
