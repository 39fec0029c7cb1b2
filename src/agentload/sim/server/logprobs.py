"""Log probabilities of the simulated model, which holds all its pieces of text equally likely."""

from __future__ import annotations

import math
from typing import Any, Final

from agentload.sim.server import corpus, tokens

_LOGPROB: Final = -math.log(corpus.PIECES)
_SIZE: Final = tokens.BYTES_PER_TOKEN


def for_chat(words: bytes, top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat, one entry for each token."""
    return {"content": [_entry(text, top) for text in tokens.strings(words)]}


def _entry(text: str, top: int) -> dict[str, Any]:
    alternatives = [_one(other) for other in _alternatives(text, top)]
    return {**_one(text), "top_logprobs": alternatives}


def _one(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": _LOGPROB, "bytes": list(text.encode())}


def for_completion(words: bytes, top: int, offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `offset` is the first token's place in the text."""
    texts = tokens.strings(words)
    offsets = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [_LOGPROB] * len(texts),
        "tokens": texts,
        "top_logprobs": [dict.fromkeys(_alternatives(text, top), _LOGPROB) for text in texts],
    }


def _alternatives(text: str, top: int) -> list[str]:
    """The token itself, then others of the model's pieces."""
    found = {text: None} if top else {}
    for start in range(0, len(corpus.WORDS), _SIZE):
        if len(found) >= top:
            break
        found[corpus.WORDS[start : start + _SIZE].decode("ascii")] = None
    return list(found)
