"""What counts as a token, which gaps say nothing, and who counted."""

import json
from typing import Any

import pytest

from agentload.client import errors
from agentload.client.answer import AnswerFold
from agentload.client.result import ServerTimes, StreamResult


def fold(
    *events: dict[str, Any] | bytes, reads: list[int] | None = None, **kwargs: Any
) -> StreamResult:
    """Events 10 ms apart, each in a read of its own unless `reads` says otherwise."""
    result = StreamResult(send_start_ns=0)
    account = AnswerFold(result, **kwargs)
    for at, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        read = at if reads is None else reads[at]
        account.take(b"", data, (read + 1) * 10_000_000, read)
    account.finish("clean", (len(events) + 1) * 10_000_000)
    return result


def delta(content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content, **more}}]}


DONE = b"[DONE]"


def test_events_of_one_read_are_marked_merged() -> None:
    result = fold(*[delta("a")] * 5, DONE, reads=[0, 1, 1, 1, 2, 3])
    assert result.merged == [False, False, True, True, False]
    assert (result.merged_reads, result.late_merged) == (1, 0)


def test_the_first_event_of_a_late_merged_read_says_nothing_either() -> None:
    result = fold(*[delta("a")] * 4, DONE, reads=[0, 1, 1, 2, 3], late_reads={1, 2})
    assert result.merged == [False, True, True, False]
    assert result.late_merged == 1


def test_a_role_chunk_with_the_first_token_is_no_merge() -> None:
    result = fold(delta("", role="assistant"), delta("a"), delta("b"), DONE, reads=[0, 0, 1, 2])
    assert result.merged == [False, False]
    assert result.merged_reads == 0


def test_running_usage_tells_the_tokens_of_each_chunk() -> None:
    result = fold(
        delta("") | {"usage": {"completion_tokens": 0, "prompt_tokens": 9}},
        delta("a") | {"usage": {"completion_tokens": 1}},
        delta("") | {"usage": {"completion_tokens": 2}},  # half a character: a token, no text
        delta("bc") | {"usage": {"completion_tokens": 4}},
        DONE,
    )
    assert result.chunk_tokens == [1, 3]
    assert (result.output_tokens, result.prompt_tokens) == (4, 9)


def test_token_ids_tell_the_tokens_of_each_chunk() -> None:
    def with_ids(content: str, ids: list[int]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": content}, "token_ids": ids}]}

    assert fold(with_ids("a", [1]), with_ids("b", [2, 3]), DONE).chunk_tokens == [1, 2]


def test_chunks_without_counts_have_none() -> None:
    assert fold(delta("a"), delta("b"), DONE).chunk_tokens is None


def test_server_times_leave_the_queue_out_of_prefill() -> None:
    metrics = {"queue_time_ms": 4869.0, "time_to_first_token_ms": 9272.0, "generation_time_ms": 50}
    result = fold(delta("a"), {"choices": [], "metrics": metrics}, DONE)
    assert result.server_times == ServerTimes(4.869, 9.272, 0.05)


def test_cached_and_reasoning_tokens() -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 896},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    result = fold(delta(reasoning="hm"), {"choices": [], "usage": usage}, DONE)
    assert (result.cached_tokens, result.reasoning_tokens) == (896, None)
    assert (result.reasoning_text, result.text) == ("hm", "")
    assert result.first_output_ns is None


@pytest.mark.parametrize("bad", [True, -1, "7", 1.5, None, [1]])
def test_only_whole_numbers_are_counts(bad: object) -> None:
    result = fold(delta("a"), {"choices": [], "usage": {"completion_tokens": bad}}, DONE)
    assert result.token_source == "events"
    assert "usage_missing" in result.flags


def test_a_named_error_event_is_an_error() -> None:
    result = StreamResult(send_start_ns=0)
    account = AnswerFold(result)
    account.take(b"error", b'{"message": "overloaded"}', 1, 0)
    account.finish("clean", 2)
    assert (result.error_class, result.error_text) == ("stream_error_event", "overloaded")


@pytest.mark.parametrize(
    ("event", "error_class", "text"),
    [
        ({"error": {"message": "boom", "code": 500}}, "stream_error_event", "boom (code 500)"),
        ({"error": "boom"}, "stream_error_event", "boom"),
        ({"error": {"message": "slow", "code": "429"}}, "rate_limited", "slow (code 429)"),
        (
            {"error": {"message": "no", "type": "rate_limit_error", "code": None}},
            "rate_limited",
            "no",
        ),
        ({"object": "error", "message": "boom"}, "stream_error_event", "boom"),
        ({"detail": "boom"}, "stream_error_event", "boom"),
        ({"error": {"status": 5}}, "stream_error_event", '{"status": 5}'),
    ],
)
def test_forms_of_errors_inside_a_stream(
    event: dict[str, Any], error_class: str, text: str
) -> None:
    result = fold(delta("a"), event, DONE)
    assert (result.status, result.error_class, result.error_text) == ("error", error_class, text)
    assert len(result.chunk_ns) == 1


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_is_none(error: object) -> None:
    assert fold({**delta("a"), "error": error}, DONE).status == "success"


def test_text_under_other_names_counts() -> None:
    refused = fold(delta(refusal="I will not"), DONE)
    assert (refused.text, len(refused.chunk_ns)) == ("I will not", 1)
    old = fold(
        delta(function_call={"name": "f", "arguments": ""}),
        delta(function_call={"arguments": "{}"}),
        DONE,
    )
    assert old.tool_calls == ({"name": "f", "arguments": "{}"},)
    assert len(old.chunk_ns) == 2


def test_an_answer_that_stops_at_once_is_empty() -> None:
    finish = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
    result = fold(finish, {"choices": [], "usage": {"completion_tokens": 1}}, DONE)
    assert result.error_class == "empty_response"


def test_fragments_of_two_tool_calls_are_joined_by_index() -> None:
    def call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
        function = {"arguments": arguments} | ({"name": name} if name else {})
        return delta(tool_calls=[{"index": index, "function": function}])

    result = fold(
        call(0, "read", ""), call(0, None, '{"a"'), call(1, "list", "{"), call(0, "read", ":1}"),
        call(1, None, "}"), DONE,
    )  # fmt: skip
    assert result.tool_calls == (
        {"name": "read", "arguments": '{"a":1}'},
        {"name": "list", "arguments": "{}"},
    )
    assert result.first_output_ns == 10_000_000


def test_what_is_written_to_files_is_short_and_valid() -> None:
    result = StreamResult(send_start_ns=0)
    account = AnswerFold(result)
    data = (
        b'{"id": "\\ud800' + b"x" * 500 + b'", "choices": [{"index": 0, "delta": {"content": "a"},'
        b' "finish_reason": "st\\nop\\udfff"}]}'
    )
    account.take(b"", data, 1, 0)
    account.take(b"", b'{"error": {"message": "\\ud800boom"}}', 2, 1)
    account.finish("clean", 3)
    assert result.finish_reason == "st op?"
    assert len(result.server_request_id or "") == 128
    text = errors.scrub(result.error_text or "")
    assert text == "?boom"
    f"{result.server_request_id}{text}".encode()


def test_text_with_half_a_surrogate_can_be_written() -> None:
    result = fold(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', DONE)
    assert result.text == "a?"


def test_nothing_after_done_counts() -> None:
    result = fold(delta("a"), DONE, delta("b"))
    assert (result.text, result.end_ns) == ("a", 20_000_000)
