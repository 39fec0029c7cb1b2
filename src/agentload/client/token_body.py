"""Prompts sent as token ids: the ids of a history that grows, equal to those of its whole text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from agentload.client.body import Buffer, TextBody
from agentload.workload.turn import Message, Role

Encode = Callable[[str], list[int]]  # special tokens of the template become their ids

# Where a text may be cut without changing an id: after a line's end, before a letter. Every
# pre-tokenizer of the BPE families (GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek) begins a new
# piece there whatever follows. Any other cut changes 15-17 % of the appends, even one right after
# a newline, where spaces may follow.
_SAFE_CUT = re.compile(r"\n(?=[A-Za-z])")
_PROBE = "def f(x):\n    return [x, 1]\n\n\nclass Größe:\n\tname = '值'\nend"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """How a text becomes ids.

    `cuts`: parts of a text, cut as above, have the ids of the whole. `slice_chars`: a longer text
    is encoded in several calls where it can be cut, so that no call holds up the event loop. A
    tail shorter than `least_chars` is not worth a call to settle it: it is encoded again.
    """

    encode: Encode
    cuts: bool
    slice_chars: int = 1 << 62
    least_chars: int = 4096


class TokenHistory:
    """The ids of a growing text. Only what comes after the last safe cut is encoded again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open = ""  # the text after the last settled cut
        self._ends: list[tuple[int, int]] = [(0, 0)]  # (characters, ids) up to each settled cut
        self.buffers: list[Buffer] = []  # settled ids as JSON, each buffer with a comma at its end
        self.tail_ids: list[int] = []

    @property
    def settled(self) -> int:
        """Ids that no append will change."""
        return self._ends[-1][1]

    def append(self, text: str) -> None:
        """Add text, to be encoded by the next `encode`."""
        self._open += text

    def encode(self, ending: str = "") -> None:
        """Encode what is not settled, and `ending`, which follows it in this request only.

        Raises what the tokenizer does; may then be called again.
        """
        while cut := self._next_cut():
            ids = self._tokenizer.encode(self._open[:cut])
            chars, count = self._ends[-1]
            self._ends.append((chars + cut, count + len(ids)))
            self.buffers.append(_json(ids) + b",")
            self._open = self._open[cut:]
        self.tail_ids = self._tokenizer.encode(self._open + ending)

    def truncate(self, text: str) -> None:
        """Go back to `text`, a beginning of the whole; ids that are settled within it stay.

        A cut at its very end does not count: what follows now may be no letter.
        """
        while len(self._ends) > 1 and self._ends[-1][0] >= len(text):
            self._ends.pop()
            self.buffers.pop()
        self._open = text[self._ends[-1][0] :]

    def _next_cut(self) -> int:
        """Where the next part to settle ends; 0 when there is none."""
        text, most = self._open, self._tokenizer.slice_chars
        if not self._tokenizer.cuts or len(text) < self._tokenizer.least_chars:
            return 0
        cut = _last_cut(text, most)
        if cut == 0 and len(text) > most:
            match = _SAFE_CUT.search(text, most)
            cut = match.end() if match else 0
        return cut


def _last_cut(text: str, most: int) -> int:
    """The last safe cut among the first `most` characters, 0 when there is none."""
    at = text.rfind("\n", 0, most)
    while at >= 0:
        following = text[at + 1 : at + 2]
        if following.isascii() and following.isalpha():
            return at + 1
        at = text.rfind("\n", 0, at)
    return 0


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

    def __init__(self, params: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(params)
        self._messages: list[Message] = []
        self._history = TokenHistory(tokenizer)
        self._tail: bytes | None = None  # None: `prepare` has to be called

    def add(self, messages: Iterable[Message]) -> None:
        """Append messages; `prepare` encodes them."""
        added = list(messages)
        self._messages += added
        self._history.append("".join(map(self._text, added)))
        self._tail = None

    def truncate(self, keep_messages: int) -> None:
        """Keep the first messages."""
        if not 0 <= keep_messages <= len(self._messages):
            raise ValueError(f"cannot keep {keep_messages} of {len(self._messages)} messages")
        if keep_messages < len(self._messages):
            del self._messages[keep_messages:]
            self._history.truncate("".join(map(self._text, self._messages)))
            self._tail = None

    def prepare(self) -> None:
        """Encode what was added; blocks the calling greenlet. Raises what the tokenizer does."""
        if self._tail is None:
            self._history.encode(self._answer)
            self._tail = _json(self._history.tail_ids)

    def buffers(self) -> list[Buffer]:
        if self._tail is None:
            raise RuntimeError("the messages added last are not encoded: call prepare first")
        head = b"%b%b%b" % (self._fixed, self._turn, self._opening)
        return [head, *self._history.buffers, self._tail, self._closing]

    @property
    def size(self) -> int:
        return sum(map(len, self.buffers()))

    @property
    def message_count(self) -> int:
        return len(self._messages)

    @property
    def prompt_tokens(self) -> int | None:
        """Ids of the next request's prompt, as of the last `prepare`."""
        return self._history.settled + len(self._history.tail_ids)

    def _text(self, message: Message) -> str:
        parts = (self._first[message.role], b"".join(message.pieces), self._after)
        text: str = orjson.loads(b'"%b%b%b"' % parts)
        return text


class PlainTokenBody(TokenBody):
    """The ids of the history as one unbroken string, without role marks."""

    _first: ClassVar[dict[Role, bytes]] = dict.fromkeys(TextBody._first, b"")
    _after: ClassVar[bytes] = b""
    _answer: ClassVar[str] = ""


def _json(ids: list[int]) -> bytes:
    return orjson.dumps(ids)[1:-1]
