"""The simulator's tokenizer: four UTF-8 bytes are one token.

A prompt is held as *words*: four bytes per token, so that a block of 16 tokens is 64 bytes and two
prompts are compared with `bytes.startswith`. A word is either four bytes of text (a shorter last
slice is padded with 0xFF, which UTF-8 never contains) or 0xFE with a 24-bit vocabulary id, for
special tokens and for prompts that come as token ids. Slices never cross a message boundary, so a
message that is appended changes no earlier token.

Token ids on the wire: a vocabulary id is itself; a text word is 2**32 + its big-endian value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

BYTES_PER_TOKEN: Final = 4
BLOCK_BYTES: Final = 16 * BYTES_PER_TOKEN
VOCABULARY: Final = (
    151_936  # as large as Qwen3's, so that ids taken from a real vocabulary are valid
)
TEXT_ID_BASE: Final = 1 << 32
_PAD: Final = b"\xff"
_VOCABULARY_MARK: Final = 0xFE
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."

_SPECIALS: Final = {
    name: 151_643 + index
    for index, name in enumerate(
        (
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "<tool_arguments>",
            "</tool_call>",
            "<|system|>",
            "<|developer|>",
            "<|user|>",
            "<|assistant|>",
            "<|tool|>",
            "<|tools|>",
        )
    )
}
_NAMES: Final = {number: name for name, number in _SPECIALS.items()}


class TokenIdError(ValueError):
    """A token id that is in no vocabulary of the simulator."""

    def __init__(self, token_id: object) -> None:
        super().__init__(f"Token id {token_id} is out of vocabulary")


def vocabulary_word(token_id: int) -> bytes:
    return (_VOCABULARY_MARK << 24 | token_id).to_bytes(BYTES_PER_TOKEN, "big")


def special(name: str) -> bytes:
    """The word of a special token, by its printed name."""
    return vocabulary_word(_SPECIALS[name])


END: Final = special("<|im_end|>")
THINK: Final = special("<think>")
THINK_END: Final = special("</think>")
CALL: Final = special("<tool_call>")
CALL_ARGUMENTS: Final = special("<tool_arguments>")
CALL_END: Final = special("</tool_call>")
_START: Final = special("<|im_start|>")
_ROLES: Final = {
    role: special(f"<|{role}|>") for role in ("system", "developer", "user", "assistant", "tool")
}
GENERATION_PROMPT: Final = _START + _ROLES["assistant"]


def encode_text(text: str) -> bytes:
    """Words of one unbroken piece of text; "" has none."""
    data = text.encode()
    return data + _PAD * (-len(data) % BYTES_PER_TOKEN)


def count(words: bytes) -> int:
    return len(words) // BYTES_PER_TOKEN


def encode_chat(
    messages: Iterable[Mapping[str, Any]], tools: str | None, generation_prompt: bool = True
) -> bytes:
    """Words of a chat as the model sees it: tools, then each message between its marks.

    Reasoning of earlier answers and ids of tool calls are left out, as chat templates do.
    """
    parts: list[bytes] = []
    if tools:
        parts += (_START, special("<|tools|>"), encode_text(tools), END)
    for message in messages:
        role = message["role"]
        parts += (_START, _ROLES.get(role) or encode_text(role))
        parts.append(encode_text(content_text(message.get("content"))))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            parts += (CALL, encode_text(function["name"]), CALL_ARGUMENTS)
            parts += (encode_text(function["arguments"]), CALL_END)
        parts.append(END)
    if generation_prompt:
        parts.append(GENERATION_PROMPT)
    return b"".join(parts)


def content_text(content: Any) -> str:
    """The text of a message's content: a string, None, or a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part if isinstance(part, str) else part["text"] for part in content)


def encode_ids(ids: Sequence[int]) -> bytes:
    """Words of a prompt that comes as token ids; raises TokenIdError for the first bad one."""
    try:
        if (
            max(ids, default=0) < VOCABULARY and min(ids, default=0) >= 0
        ):  # the common case, without a Python loop
            words = array("I", ids)
            words.byteswap()
            data = bytearray(words.tobytes())
            data[::BYTES_PER_TOKEN] = bytes((_VOCABULARY_MARK,)) * len(ids)
            return bytes(data)
        return b"".join(map(_word_of_id, ids))
    except TypeError:
        raise TokenIdError(next(i for i in ids if not isinstance(i, int))) from None


def _word_of_id(token_id: int) -> bytes:
    if 0 <= token_id < VOCABULARY:
        return vocabulary_word(token_id)
    if TEXT_ID_BASE <= token_id < 2 * TEXT_ID_BASE:
        word = (token_id - TEXT_ID_BASE).to_bytes(BYTES_PER_TOKEN, "big")
        if word[0] < _VOCABULARY_MARK:
            return word
    raise TokenIdError(token_id)


def ids(words: bytes) -> list[int]:
    """Token ids, one for each word."""
    numbers = array("I", words)
    numbers.byteswap()
    vocabulary_from = _VOCABULARY_MARK << 24
    return [n & 0xFFFFFF if n >= vocabulary_from else n + TEXT_ID_BASE for n in numbers]


def strings(words: bytes) -> list[str]:
    """The printed form of each token."""
    return [decode(words[i : i + BYTES_PER_TOKEN]) for i in range(0, len(words), BYTES_PER_TOKEN)]


def decode(words: bytes) -> str:
    """Text of the words, special tokens by their printed names."""
    parts = []
    for i in range(0, len(words), BYTES_PER_TOKEN):
        word = words[i : i + BYTES_PER_TOKEN]
        if word[0] == _VOCABULARY_MARK:
            parts.append(_vocabulary_text(int.from_bytes(word[1:], "big")).encode())
        else:
            parts.append(word.rstrip(_PAD))
    return b"".join(parts).decode(errors="replace")


def _vocabulary_text(token_id: int) -> str:
    """Special tokens have names; any other id is four characters, different for each id."""
    if token_id in _NAMES:
        return _NAMES[token_id]
    size = len(_ALPHABET)
    high, low = divmod(token_id, size * size)
    middle, last = divmod(low, size)
    return " " + _ALPHABET[high] + _ALPHABET[middle] + _ALPHABET[last]
