"""Ids of a history that grows are those of its whole text."""

import json
import random
from pathlib import Path

import pytest
import quicktok
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload.client.body import PlainTextBody, TextBody
from agentload.client.token_body import (
    Encode,
    PlainTokenBody,
    TokenBody,
    TokenHistory,
    Tokenizer,
    cuts_are_safe,
)
from agentload.client.vocabulary import Vocabulary
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


def settling(encode: Encode, slice_chars: int = 1 << 62, least_chars: int = 0) -> Tokenizer:
    """A tokenizer that settles all it can with each append."""
    return Tokenizer(encode, cuts_are_safe(encode), slice_chars, least_chars)


def ids_of(history: TokenHistory) -> list[int]:
    history.encode()
    settled = b"".join(history.buffers).decode()
    assert history.settled == settled.count(",")
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
    history = TokenHistory(settling(encode, chance.choice([100, 3000, 1 << 62])))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        history.append(text[start:stop])
        assert ids_of(history) == encode(text[:stop])
    for stop in reversed(cuts):
        history.truncate(text[:stop])
        if chance.random() < 0.5:
            assert ids_of(history) == encode(text[:stop])
    history.append(text[cuts[0] :])
    assert ids_of(history) == encode(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_any_text_in_any_parts(name: str, parts: list[str]) -> None:
    encode = encoder(name)
    history = TokenHistory(settling(encode))
    for part in parts:
        history.append(part)
        history.encode()
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

    history = TokenHistory(Tokenizer(counting, cuts=True, slice_chars=20_000))
    history.append(CODE * 10)
    history.encode()
    assert max(encoded) <= 20_000
    encoded.clear()
    history.append(CODE[:1000])
    history.encode("ending")
    assert sum(encoded) < 10_000  # of 150,000
    assert len(encoded) <= 2  # each is a request when the server encodes


def test_a_failed_call_is_made_again() -> None:
    fails = iter([False, False, True, True, False])

    def flaky(text: str) -> list[int]:
        if next(fails, False):
            raise ConnectionError
        return encoder("qwen3")(text)

    history = TokenHistory(Tokenizer(flaky, cuts=True, slice_chars=4096))
    history.append(CODE)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            history.encode()
    assert ids_of(history) == encoder("qwen3")(CODE)


def with_space_in_front(text: str) -> list[int]:
    return [ord(char) for char in " " + text]


@pytest.mark.parametrize(
    ("encode", "expected"),
    [(with_space_in_front, False), *[(encoder(name), True) for name in ENCODINGS]],
)
def test_which_tokenizers_may_be_cut(encode: Encode, expected: bool) -> None:
    assert cuts_are_safe(encode) is expected


def test_a_tokenizer_that_may_not_be_cut_sees_the_whole_text() -> None:
    history = TokenHistory(settling(with_space_in_front, slice_chars=5))
    for part in ("one\ntwo", "\nthree\nfour"):
        history.append(part)
        history.encode()
    assert ids_of(history) == with_space_in_front("one\ntwo\nthree\nfour")
    history.truncate("one\ntwo")
    assert ids_of(history) == with_space_in_front("one\ntwo")


@pytest.mark.parametrize(
    ("of_ids", "of_text"), [(TokenBody, TextBody), (PlainTokenBody, PlainTextBody)]
)
def test_a_body_holds_the_ids_of_the_text_body(
    of_ids: type[TokenBody], of_text: type[TextBody]
) -> None:
    encode = encoder("qwen3")
    by_ids, by_text = of_ids({"model": "m"}, settling(encode)), of_text({"model": "m"})
    for at in range(4):
        new = [Message("user", (json.dumps(CODE[at * 700 : at * 700 + 700]).encode()[1:-1],))]
        for body in (by_ids, by_text):
            body.add(new)
            body.set_turn({"max_tokens": at})
    for keep in (4, 2, 2, 1):
        by_ids.truncate(keep)
        by_text.truncate(keep)
        by_ids.prepare()
        sent = json.loads(b"".join(by_ids.buffers()))
        text = json.loads(b"".join(by_text.buffers()))["prompt"]
        assert sent["prompt"] == encode(text)
        assert sent["max_tokens"] == 3
        assert by_ids.prompt_tokens == len(sent["prompt"])
        assert by_ids.size == len(b"".join(by_ids.buffers()))
        assert by_ids.message_count == keep
    assert by_ids.path == "/completions"
    by_ids.truncate(0)
    with pytest.raises(ValueError, match="cannot keep 1 of 0"):
        by_ids.truncate(1)


def test_a_body_that_is_not_encoded_is_not_sent() -> None:
    body = TokenBody({"model": "m"}, settling(encoder("qwen3")))
    body.add([Message("user", (b"a",))])
    with pytest.raises(RuntimeError, match="prepare"):
        body.buffers()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
def test_special_tokens_are_those_of_the_package(name: str) -> None:
    theirs, chance = quicktok.get_encoding(name), random.Random(name)
    specials = sorted(theirs.special_tokens_set)
    pieces = [*specials[:40], "<|im_start|>user\n", "<|im_end|>\n", "<|", "|>", " \n", "值ß", ""]
    for _ in range(20):
        at = chance.randrange(len(CODE))
        text = "".join(chance.choices([*pieces, CODE[at : at + 50], MIXED[at % 40 :]], k=30))
        assert Vocabulary(theirs).encode(text) == theirs.encode_with_special(text)
