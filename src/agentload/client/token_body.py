"""Prompts sent as token ids: the ids of a history that grows, equal to those of its whole text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from agentload.client.body import Buffer, TextBody
from agentload.workload.turn import Message

Encode = Callable[[str], list[int]]  # special tokens of the template become their ids

# Where a text may be cut without changing an id: after a line's end, before a letter. Every
# pre-tokenizer of the BPE families (GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek) begins a new
# piece there whatever follows. Any other cut changes 15-17 % of the appends, even one right after
# a newline, where spaces may follow.
_SAFE_CUT = re.compile(r"\n(?=[A-Za-z])")
_PROBE = "def f(x):\n    return [x, 1]\n\n\nclass Größe:\n\tname = '值'\nend"


class TokenHistory:
    """The ids of a growing text. Only what comes after the last safe cut is encoded again."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._cuts = cuts_are_safe(encode)
        self._tail = ""
        self.settled = 0  # ids that no append will change
        self.buffers: list[Buffer] = []  # those ids as JSON, each buffer with a comma at its end
        self.tail_ids: list[int] = []

    def append(self, text: str, ending: str = "") -> None:
        """Add `text`; `ending` follows it in this request only."""
        self._tail += text
        cut = self._last_cut()
        if cut:
            ids = self._encode(self._tail[:cut])
            self.settled += len(ids)
            self.buffers.append(_json(ids) + b",")
            self._tail = self._tail[cut:]
        self.tail_ids = self._encode(self._tail + ending)

    def _last_cut(self) -> int:
        if not self._cuts:
            return 0
        cut = 0
        for match in _SAFE_CUT.finditer(self._tail):
            cut = match.end()
        return cut


def cuts_are_safe(encode: Encode) -> bool:
    """Whether the tokenizer encodes the parts of a text as it encodes the whole.

    One that puts a space in front of each text (SentencePiece) does not: there every append
    encodes the whole history.
    """
    cuts = [match.end() for match in _SAFE_CUT.finditer(_PROBE)]
    whole = encode(_PROBE)
    return all(encode(_PROBE[:cut]) + encode(_PROBE[cut:]) == whole for cut in cuts)


class TokenBody(TextBody):
    """The body of a completion whose prompt is token ids; the text is that of `TextBody`."""

    _opening: ClassVar[bytes] = b',"prompt":['
    _closing: ClassVar[bytes] = b"]}"
    _answer: ClassVar[str] = "<|im_start|>assistant\n"

    def __init__(self, params: Mapping[str, Any], encode: Encode) -> None:
        super().__init__(params)
        self._encode = encode
        self._messages: list[Message] = []
        self._history = TokenHistory(encode)

    def add(self, messages: Iterable[Message]) -> None:
        """Append messages; encodes what comes after the last safe cut."""
        added = list(messages)
        self._messages += added
        self._history.append("".join(map(self._text, added)), self._answer)

    def truncate(self, keep_messages: int) -> None:
        """Keep the first messages; the whole of them is encoded again."""
        if not 0 <= keep_messages <= len(self._messages):
            raise ValueError(f"cannot keep {keep_messages} of {len(self._messages)} messages")
        if keep_messages < len(self._messages):
            kept, self._messages = self._messages[:keep_messages], []
            self._history = TokenHistory(self._encode)
            self.add(kept)

    def buffers(self) -> list[Buffer]:
        head = b"%b%b%b" % (self._fixed, self._turn, self._opening)
        return [head, *self._history.buffers, _json(self._history.tail_ids), self._closing]

    @property
    def size(self) -> int:
        return sum(map(len, self.buffers()))

    @property
    def message_count(self) -> int:
        return len(self._messages)

    @property
    def prompt_tokens(self) -> int:
        """Ids of the next request's prompt."""
        return self._history.settled + len(self._history.tail_ids)

    def _text(self, message: Message) -> str:
        parts = (self._first[message.role], b"".join(message.pieces), self._after)
        text: str = json.loads(b'"%b%b%b"' % parts)
        return text


def _json(ids: list[int]) -> bytes:
    return ",".join(map(str, ids)).encode()
