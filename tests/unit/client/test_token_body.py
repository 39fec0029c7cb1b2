"""Ids of a history that grows are those of its whole text."""

import json
import random
from pathlib import Path

import pytest
import quicktok
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload.client.body import TextBody
from agentload.client.token_body import Encode, TokenBody, TokenHistory, cuts_are_safe
from agentload.workload.turn import Message

ENCODINGS = ["cl100k_base", "o200k_base", "llama3", "qwen3"]
CODE = Path(json.__file__).read_text(encoding="utf-8")
MIXED = (
    "größer als 12345678 Äpfel\n\n  值 = 计算(完成)\n\tприв́ет, κόσμε 👩‍👩‍👧 e\u0301\n"
    "a\r\n\r\nb ///\n//x\n)\n/y\nнет\nnaïve 0x1F600\n'''\n \n  z"
)


def encoder(name: str) -> Encode:
    encode: Encode = quicktok.get_encoding(name).encode_with_special
    return encode


def ids_of(history: TokenHistory) -> list[int]:
    settled = b"".join(history.buffers).decode()
    return [int(number) for number in settled.split(",") if number] + history.tail_ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([CODE, MIXED * 4, CODE + MIXED]))
def test_ids_equal_those_of_the_whole_text_at_random_cuts(
    name: str, chance: random.Random, text: str
) -> None:
    encode = encoder(name)
    cuts = sorted(chance.randrange(len(text)) for _ in range(12))
    history = TokenHistory(encode)
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        history.append(text[start:stop])
        assert ids_of(history) == encode(text[:stop])


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_any_text_in_any_parts(name: str, parts: list[str]) -> None:
    encode = encoder(name)
    history = TokenHistory(encode)
    for part in parts:
        history.append(part)
    assert ids_of(history) == encode("".join(parts))


def test_appending_ids_of_parts_would_be_wrong() -> None:
    """What the safe cuts are for: the same cuts, each part encoded on its own."""
    encode = encoder("qwen3")
    cuts = range(0, len(CODE), 997)
    parts = [CODE[start : start + 997] for start in cuts]
    assert [token for part in parts for token in encode(part)] != encode(CODE)


def test_little_is_encoded_again() -> None:
    encoded: list[int] = []

    def counting(text: str) -> list[int]:
        encoded.append(len(text))
        return encoder("qwen3")(text)

    history = TokenHistory(counting)
    history.append(CODE * 10)
    encoded.clear()
    history.append(CODE[:1000])
    assert sum(encoded) < 10_000  # of 150,000


def with_space_in_front(text: str) -> list[int]:
    return [ord(char) for char in " " + text]


@pytest.mark.parametrize(
    ("encode", "expected"),
    [(with_space_in_front, False), *[(encoder(name), True) for name in ENCODINGS]],
)
def test_which_tokenizers_may_be_cut(encode: Encode, expected: bool) -> None:
    assert cuts_are_safe(encode) is expected


def test_a_tokenizer_that_may_not_be_cut_sees_the_whole_text() -> None:
    history = TokenHistory(with_space_in_front)
    for part in ("one\ntwo", "\nthree\nfour"):
        history.append(part)
    assert ids_of(history) == with_space_in_front("one\ntwo\nthree\nfour")


def test_a_body_holds_the_ids_of_the_text_body() -> None:
    encode = encoder("qwen3")
    by_ids, by_text = TokenBody({"model": "m"}, encode), TextBody({"model": "m"})
    for at in range(4):
        new = [Message("user", (json.dumps(CODE[at * 700 : at * 700 + 700]).encode()[1:-1],))]
        for body in (by_ids, by_text):
            body.add(new)
            body.set_turn({"max_tokens": at})
    for keep in (4, 2, 0):
        by_ids.truncate(keep)
        by_text.truncate(keep)
        sent = json.loads(b"".join(by_ids.buffers()))
        text = json.loads(b"".join(by_text.buffers()))["prompt"]
        assert sent["prompt"] == encode(text)
        assert sent["max_tokens"] == 3
        assert by_ids.prompt_tokens == len(sent["prompt"])
        assert by_ids.size == len(b"".join(by_ids.buffers()))
        assert by_ids.message_count == keep
    assert by_ids.path == "/completions"
    with pytest.raises(ValueError, match="cannot keep 1 of 0"):
        by_ids.truncate(1)
