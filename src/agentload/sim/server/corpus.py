"""The text that the simulated model writes: code-like ASCII in pieces of one token each."""

from __future__ import annotations

from typing import Final

import orjson

from agentload.sim.server.tokens import BYTES_PER_TOKEN

_VERBS: Final = ("read", "write", "merge", "split", "check", "open", "close", "count", "find")
_NOUNS: Final = ("line", "block", "file", "node", "token", "row", "path", "entry", "patch", "test")


def _function(verb: str, noun: str) -> str:
    return (
        f"def {verb}_{noun}({noun}s, limit=None):\n"
        f'    """{verb.title()} each {noun} up to the limit."""\n'
        f"    found = []\n"
        f"    for index, {noun} in enumerate({noun}s):\n"
        f"        if limit is not None and index >= limit:\n"
        f"            break\n"
        f"        found.append({noun}.{verb}())\n"
        f"    return found\n\n\n"
    )


def _text() -> str:
    text = "".join(_function(verb, noun) for verb in _VERBS for noun in _NOUNS)
    return text[: len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN]


WORDS: Final = _text().encode("ascii")
PIECES: Final = len(WORDS) // BYTES_PER_TOKEN


def json_escaped(text: str) -> bytes:
    """The text as it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]


_ESCAPED: Final = [
    json_escaped(WORDS[i : i + BYTES_PER_TOKEN].decode("ascii"))
    for i in range(0, len(WORDS), BYTES_PER_TOKEN)
]


def words(start: int, count: int) -> bytes:
    """`count` tokens of the endless text from token `start` on."""
    start %= PIECES
    times = 1 + (start + count) // PIECES
    return (WORDS * times)[start * BYTES_PER_TOKEN : (start + count) * BYTES_PER_TOKEN]


def escaped(start: int, count: int) -> list[bytes]:
    """The same tokens, each JSON-escaped."""
    start %= PIECES
    return (_ESCAPED * (1 + (start + count) // PIECES))[start : start + count]
