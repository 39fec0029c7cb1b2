"""Planned answers: their tokens, their text, how they end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.sim.server import answer, tokens
from agentload.sim.server.answer import Answer, Options
from agentload.sim.server.protocol import ChatBody, Lengths

EXACTLY = Lengths(limit=None, least=0, ignore_end=True)
READ = {"name": "read_file", "parameters": {"properties": {"path": {"type": "string"}}}}


def said(made: Answer, part: str) -> str:
    text = answer.texts(made.segments, 0, made.tokens).get(part, b"")  # type: ignore[call-overload]
    return str(json.loads(b'"' + text + b'"'))


@given(st.integers(1, 300), st.integers(0, 50))
def test_a_text_of_exactly_so_many_tokens(count: int, seed: int) -> None:
    made = answer.text(EXACTLY, count, random.Random(seed))
    assert (made.tokens, made.finish_reason) == (count, "length")
    assert tokens.encode_text(said(made, "content")) == made.words


@given(st.integers(1, 300))
def test_pieces_add_up_whatever_the_chunks(cut: int) -> None:
    made = answer.text(EXACTLY, 300, random.Random(1), reasoning=True)
    for part in ("reasoning", "content"):
        halves = [
            answer.texts(made.segments, *ends).get(part, b"") for ends in ((0, cut), (cut, 300))
        ]
        assert b"".join(halves) == answer.texts(made.segments, 0, 300)[part]


def test_an_answer_that_ends_itself_has_an_end_token_without_text() -> None:
    made = answer.text(Lengths(4000, 0, False), 4000, random.Random(3))
    assert made.finish_reason == "stop"
    assert made.words.endswith(tokens.END)
    assert len(said(made, "content")) == 4 * (made.tokens - 1)


@given(st.integers(0, 1000))
def test_limits_and_minimum_are_kept(seed: int) -> None:
    made = answer.text(Lengths(100, 60, False), 100, random.Random(seed))
    assert 60 < made.tokens <= 100
    assert made.finish_reason == ("stop" if made.words.endswith(tokens.END) else "length")


def test_lengths_are_like_those_of_coding_agents() -> None:
    lengths = Lengths(32_000, 0, False)
    drawn = [answer.text(lengths, 32_000, random.Random(i)).tokens for i in range(400)]
    assert 180 < sorted(drawn)[200] < 250  # median 214


@given(st.integers(1, 120), st.integers(0, 20))
def test_a_tool_call_has_valid_arguments_or_is_cut_short(count: int, seed: int) -> None:
    made = answer.tool_call(READ, EXACTLY, count, random.Random(seed))
    assert made.tokens == count
    if made.finish_reason == "tool_calls":
        assert said(made, "name") == "read_file"
        assert list(json.loads(said(made, "arguments"))) == ["path"]
    else:
        assert made.finish_reason == "length"
        assert count < 3 + 3 + 3  # three marks, the name, and {"path":""} in three tokens


def test_a_tool_call_comes_back_as_history_with_its_own_tokens() -> None:
    made = answer.tool_call(READ, EXACTLY, 40, random.Random(5))
    function = {"name": said(made, "name"), "arguments": said(made, "arguments")}
    asked: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    history = [
        *asked,
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
    ]
    assert tokens.encode_chat(history, None).startswith(
        tokens.encode_chat(asked, None) + made.words
    )


@pytest.mark.parametrize(
    ("choice", "auto", "called"),
    [
        ("required", False, "read_file"),
        ("auto", False, None),
        (None, True, "read_file"),
        ("none", True, None),
        ({"type": "function", "function": {"name": "other"}}, False, "other"),
    ],
)
def test_when_a_tool_is_called(choice: object, auto: bool, called: str | None) -> None:
    body = ChatBody.model_validate(
        {"messages": [], "tools": [{"function": READ}], "tool_choice": choice}
    )
    made = answer.for_chat(body, b"", EXACTLY, 40, 0, Options(auto_tool_choice=auto))
    assert said(made, "name") == (called or "")


@pytest.mark.parametrize(
    ("server", "asked", "thought"),
    [(True, None, 8), (True, False, 0), (False, True, 8), (False, None, 0)],
)
def test_when_an_answer_is_thought_over(server: bool, asked: bool | None, thought: int) -> None:
    fields = {"messages": [], "chat_template_kwargs": {"enable_thinking": asked}}
    body = ChatBody.model_validate(fields if asked is not None else {"messages": []})
    made = answer.for_chat(body, b"", EXACTLY, 24, 0, Options(reasoning=server))
    assert len(said(made, "reasoning")) == 4 * thought
    # One token of a thought answer is the mark between thought and text.
    assert len(said(made, "content")) == 4 * (24 - thought - bool(thought))


def test_the_same_prompt_and_seed_give_the_same_answer() -> None:
    def words(prompt: bytes, seed: int | None, choice: int) -> bytes:
        return answer.text(EXACTLY, 50, answer.draw_for(prompt, seed, choice)).words

    assert words(b"p", 1, 0) == words(b"p", 1, 0)
    assert len({words(b"p", 1, 0), words(b"p", 2, 0), words(b"p", 1, 1), words(b"q", 1, 0)}) == 4


@pytest.mark.parametrize(
    "tool",
    [{}, {"function": None}, {"function": "f"}, {"function": {"name": 5, "parameters": []}},
     {"function": {"name": "f", "parameters": {"properties": ["a"]}}}],
)  # fmt: skip
def test_any_tool_can_be_called(tool: object) -> None:
    body = ChatBody.model_validate({"messages": [], "tools": [tool], "tool_choice": "required"})
    made = answer.for_chat(body, b"", EXACTLY, 40, 0, Options())
    assert made.tokens == 40
    assert list(json.loads(said(made, "arguments"))) == ["input"]
