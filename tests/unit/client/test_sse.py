"""Event framing: the HTML standard's rules, whatever the reads."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.client import sse
from agentload.client.answer import AnswerFold
from agentload.client.result import StreamResult


def events(*reads: bytes) -> list[tuple[bytes, bytes]]:
    decoder = sse.SseDecoder()
    found = [event for read in reads for event in decoder.feed(read)]
    return found + decoder.end()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\n", [(b"", b"a")]),
        (b"data:  a\n\n", [(b"", b" a")]),
        (b"data: a\r\n\r\n", [(b"", b"a")]),
        (b"data: a\r\r", [(b"", b"a")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"event: error\ndata: a\nid: 7\nretry: 10\n\n", [(b"error", b"a")]),
        (b": ping\n\n:\n\ndata: a\n\n", [(b"", b"a")]),
        (b"data:\n\ndata: \n\ndata\n\ndata: a\n\n", [(b"", b"a")]),
        (b"\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"data: a", [(b"", b"a")]),
        (b"unknown: x\ndata: a\n\n", [(b"", b"a")]),
        (b"data: \xff\xfe\n\n", [(b"", b"\xff\xfe")]),
        (b"", []),
    ],
)
def test_forms_of_a_stream(stream: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert events(stream) == expected
    assert events(*(bytes([byte]) for byte in stream)) == expected


LINES = st.lists(
    st.sampled_from(
        [
            b"data: x",
            b"data:y",
            b"data",
            b": c",
            b"event: e",
            b"id: 1",
            b"",
            b"",
            b"zz",
            b"data: \xe8",
        ]
    ),
    max_size=20,
)


@given(LINES, st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1), st.data())
def test_splits_do_not_change_the_events(
    lines: list[bytes], ends: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + ends[at % len(ends)] for at, line in enumerate(lines))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    parts = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    assert events(*parts) == events(stream)


@given(st.lists(st.binary(max_size=80), max_size=10))
def test_random_bytes_are_events_or_none(reads: list[bytes]) -> None:
    assert events(*reads) == events(b"".join(reads))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "content", "usage", "completion_tokens", "tool_calls", "index",
             "function", "name", "arguments", "error", "message", "metrics", "queue_time_ms",
             "token_ids", "finish_reason", "id", "prompt_tokens_details", "cached_tokens", "text"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=5), st.sampled_from(["clean", "cut", "failed"]))
def test_any_json_is_measured_or_an_error(values: list[object], end: str) -> None:
    result = StreamResult(send_start_ns=0)
    fold = AnswerFold(result)
    for at, value in enumerate(values):
        fold.take(b"", json.dumps(value).encode(), at, at)
    fold.finish(end, len(values))  # type: ignore[arg-type]
    assert result.status in ("success", "error")
    assert len(result.merged) == len(result.chunk_ns)
    assert result.text.encode("utf-8") == result.text.encode("utf-8", "strict")


@pytest.mark.parametrize(
    "data", [b"[", b"1", b"null", b"\xff", b"[" * 5000, b'{"choices":', b"NaN"]
)
def test_data_that_is_no_object_is_a_bad_event(data: bytes) -> None:
    result = StreamResult(send_start_ns=0)
    fold = AnswerFold(result)
    fold.take(b"", data, 1, 0)
    fold.finish("clean", 2)
    assert (result.status, result.error_class) == ("error", "bad_event")


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    decoder = sse.SseDecoder()
    assert decoder.feed(b"x" * 999) == []
    with pytest.raises(sse.SseError):
        decoder.feed(b"xx")


@pytest.mark.parametrize(
    ("start", "content_type", "expected"),
    [
        (b"data: {}", "application/json", True),
        (b'{"error": 1}', "text/event-stream", False),
        (b"<html>", "text/event-stream", False),
        (b'{"id": "x"}', "application/json", False),
        (b": ping", "", True),
        (b"da", "", True),
        (b"\r\nevent: x", "text/plain", True),
        (b"foo: bar\n", "text/event-stream", True),
        (b"foo: bar\n", "text/plain", False),
    ],
)
def test_a_stream_is_known_by_its_bytes(start: bytes, content_type: str, expected: bool) -> None:
    assert sse.is_event_stream(start, content_type) is expected
