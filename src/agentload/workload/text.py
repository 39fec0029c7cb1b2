"""A long text kept once as JSON-escaped bytes, from which slices are handed out uncopied."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from random import Random

import orjson


def escaped(text: str) -> bytes:
    """The inside of a JSON string, UTF-8, without the quotes. Lone surrogates become '?'."""
    try:
        return orjson.dumps(text)[1:-1]
    except TypeError:  # a lone surrogate has no UTF-8 form
        return orjson.dumps(text.encode("utf-8", "replace").decode())[1:-1]


class Text:
    """Lines of one kind of content. Positions are counted in characters of the unescaped text."""

    __slots__ = ("_byte_starts", "_char_starts", "data", "view")

    def __init__(self, lines: Iterable[str]) -> None:
        self._byte_starts = array("I", [0])
        self._char_starts = array("I", [0])
        parts, byte_at, char_at = [], 0, 0
        for line in lines:
            part = escaped(line) + b"\\n"
            parts.append(part)
            byte_at += len(part)
            char_at += len(line) + 1
            self._byte_starts.append(byte_at)
            self._char_starts.append(char_at)
        if not parts:
            raise ValueError("a text needs at least one line")
        self.data = b"".join(parts)
        self.view = memoryview(self.data)

    @property
    def chars(self) -> int:
        """Characters of the whole text, line ends included."""
        return self._char_starts[-1]

    def line_end(self, position: int) -> int:
        """The position just after the line that holds a position."""
        return self._char_starts[bisect_right(self._char_starts, position)]

    def inside_word(self, position: int) -> bool:
        """Whether the characters before and at a position both belong to one ASCII word."""
        at = self._byte_at(position % self.chars)
        pair = self.data[max(0, at - 1) : at + 1]
        is_escape = self.data[max(0, at - 2) : at - 1] == b"\\"  # the n of a line end
        return len(pair) == 2 and pair.isalnum() and not is_escape

    def random_line(self, rng: Random) -> int:
        """The position of the first character of a line, any line alike."""
        return self._char_starts[rng.randrange(len(self._char_starts) - 1)]

    def slices(self, start: int, chars: int) -> tuple[memoryview, ...]:
        """Exactly `chars` characters from position `start`, wrapping at the end of the text."""
        pieces = []
        while chars > 0:
            taken = min(chars, self.chars - start)
            pieces.append(self.view[self._byte_at(start) : self._byte_at(start + taken)])
            chars -= taken
            start = 0
        return tuple(pieces)

    def _byte_at(self, position: int) -> int:
        """The byte offset of a character, which is never inside an escape or a UTF-8 sequence."""
        line = bisect_right(self._char_starts, position) - 1
        rest = position - self._char_starts[line]
        start = self._byte_starts[line]
        if rest == 0:
            return start
        raw = self.data[start : self._byte_starts[line + 1]]
        head = raw[:rest]
        if head.isascii() and b"\\" not in head:
            return start + rest
        return start + len(escaped(orjson.loads(b'"' + raw + b'"')[:rest]))
