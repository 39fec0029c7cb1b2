"""Bodies that grow: one valid JSON object at every turn, shared pieces untouched."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.client.body import PlainTextBody, PromptBody, TextBody
from agentload.workload.turn import Message, Role

ROLES: list[Role] = ["system", "user", "assistant", "tool"]


def escaped(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()[1:-1]


def message(role: Role, text: str) -> Message:
    piece = escaped(text)
    return Message(role, (piece[:3], memoryview(piece)[3:]))


def joined(body: PromptBody) -> bytes:
    return b"".join(body.buffers())


MESSAGES = st.lists(
    st.tuples(st.sampled_from(ROLES), st.text(st.characters(exclude_categories=["Cs"])))
)


@given(MESSAGES, st.integers(0, 10))
def test_a_body_is_the_json_of_its_messages(planned: list[tuple[Role, str]], keep: int) -> None:
    body = PromptBody({"model": "m", "temperature": 0})
    body.add(message(role, text) for role, text in planned)
    keep = min(keep, len(planned))
    body.truncate(keep)
    body.add([message("user", "next")])
    body.set_turn({"max_tokens": 7})
    expected = [{"role": role, "content": text} for role, text in planned[:keep]]
    expected.append({"role": "user", "content": "next"})
    assert json.loads(joined(body)) == {
        "model": "m",
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "messages": expected,
    }
    assert body.size == len(joined(body))
    assert body.message_count == keep + 1


def test_turn_parameters_replace_those_of_the_turn_before() -> None:
    body = PromptBody({"model": "m"}, continuous_usage=True)
    body.set_turn({"max_tokens": 7, "ignore_eos": True})
    body.set_turn({"max_tokens": 8})
    body.set_turn({})
    sent = json.loads(joined(body))
    assert "max_tokens" not in sent
    assert sent["stream_options"]["continuous_usage_stats"] is True
    assert sent["messages"] == []


def test_pieces_are_shared_not_copied() -> None:
    piece = memoryview(b"shared text")
    bodies = [PromptBody({"model": "m"}) for _ in range(2)]
    for body in bodies:
        body.add([Message("user", (piece,))])
    assert all(any(buffer is piece for buffer in body.buffers()) for body in bodies)


def test_history_is_the_same_bytes_after_an_append() -> None:
    body = PromptBody({"model": "m"})
    body.add([message("user", "one")])
    before = body.buffers()
    body.add([message("assistant", "two")])
    after = body.buffers()
    assert all(a is b for a, b in zip(before[1:-1], after[1:], strict=False))


def test_keeping_more_than_there_is_fails() -> None:
    with pytest.raises(ValueError, match="cannot keep 1 of 0"):
        PromptBody({"model": "m"}).truncate(1)


def test_a_parameter_that_is_no_json_fails() -> None:
    with pytest.raises(ValueError, match=r"JSON"):
        PromptBody({"model": "m", "temperature": float("nan")})


def test_a_text_body_is_one_prompt() -> None:
    body = TextBody({"model": "m"})
    body.add([message("system", 'a "b"'), message("user", "c\n")])
    assert body.path == "/completions"
    assert json.loads(joined(body))["prompt"] == (
        '<|im_start|>system\na "b"<|im_end|>\n'
        "<|im_start|>user\nc\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert body.size == len(joined(body))


def test_a_plain_text_body_joins_words_across_messages() -> None:
    body = PlainTextBody({"model": "m"})
    body.add([message("system", 'a "b"\n'), message("user", "res"), message("assistant", "ult")])
    assert json.loads(joined(body))["prompt"] == 'a "b"\nresult'
    body.truncate(2)
    body.add([message("assistant", "t")])
    assert json.loads(joined(body))["prompt"] == 'a "b"\nrest'
    assert body.size == len(joined(body))
