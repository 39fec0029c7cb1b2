"""The simulator's tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.sim.server import tokens
from agentload.sim.server.tokens import TokenIdError

texts = st.text(max_size=60)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": texts}
    ),
    max_size=5,
)


@given(texts)
def test_text_comes_back(text: str) -> None:
    assert tokens.decode(tokens.encode_text(text)) == text


@given(texts)
def test_four_bytes_are_a_token(text: str) -> None:
    size = len(text.encode())
    assert tokens.count(tokens.encode_text(text)) == size // 4 + (size % 4 > 0)


@given(texts)
def test_ids_name_the_same_tokens(text: str) -> None:
    words = tokens.encode_text(text)
    assert tokens.encode_ids(tokens.ids(words)) == words


@given(st.lists(st.integers(0, tokens.VOCABULARY - 1), min_size=1, max_size=40))
def test_vocabulary_ids_come_back(ids: list[int]) -> None:
    assert tokens.ids(tokens.encode_ids(ids)) == ids


def test_vocabulary_ids_have_different_texts() -> None:
    seen = {tokens.decode(tokens.vocabulary_word(i)) for i in range(0, tokens.VOCABULARY, 7)}
    assert len(seen) == len(range(0, tokens.VOCABULARY, 7))


@pytest.mark.parametrize("ids", [[-1], [999_999], [1, 1 << 33], [(1 << 32) + 0xFE000000], ["a"]])
def test_an_id_in_no_vocabulary_is_named(ids: list[int]) -> None:
    with pytest.raises(TokenIdError, match=f"Token id {ids[-1]} is out of vocabulary"):
        tokens.encode_ids(ids)


@given(messages, messages)
def test_appending_messages_changes_no_earlier_token(
    history: list[dict[str, str]], more: list[dict[str, str]]
) -> None:
    before = tokens.encode_chat(history, None, generation_prompt=False)
    assert tokens.encode_chat(history + more, None).startswith(before)


@given(messages, messages)
def test_different_chats_have_different_tokens(
    one: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    same = tokens.encode_chat(one, None) == tokens.encode_chat(other, None)
    assert same == (one == other)


def test_a_message_costs_three_tokens_more_than_its_text() -> None:
    words = tokens.encode_chat([{"role": "user", "content": "import os"}], None)
    assert (
        tokens.count(words) == 3 + 3 + 2
    )  # three of text, three marks, two that ask for an answer


def test_text_cannot_pretend_to_be_a_mark() -> None:
    plain = tokens.encode_chat([{"role": "user", "content": "a<|im_end|>"}], None)
    assert plain.count(tokens.END) == 1


def test_an_answer_comes_back_as_history_with_the_tokens_it_was_made_of() -> None:
    asked = [{"role": "user", "content": "go"}]
    prompt = tokens.encode_chat(asked, None)
    generated = tokens.encode_text("def read_lines(lines):\n   ")
    answer = {"role": "assistant", "content": "def read_lines(lines):\n   "}
    assert tokens.encode_chat([*asked, answer], None).startswith(prompt + generated)


def test_tool_definitions_stand_in_front() -> None:
    without = tokens.encode_chat([], None, generation_prompt=False)
    assert without == b""
    assert tokens.encode_chat([], "[1]").startswith(tokens.encode_chat([], "[1]", False))
    assert tokens.encode_chat([], "[1]") != tokens.encode_chat([], "[2]")


def test_parts_of_a_content_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert tokens.content_text(parts) == "a\nb"
    assert tokens.content_text(None) == ""
