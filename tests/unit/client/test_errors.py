"""Classes of failures, and texts without ids or keys."""

import itertools
import socket
import ssl
from datetime import UTC, datetime

import pytest

from agentload.client import errors

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (429, "", "rate_limited"),
        (401, '{"error":"Unauthorized"}', "auth"),
        (403, "forbidden", "auth"),
        (404, "The model `nope` does not exist. Valid aliases: tiny.", "model_not_found"),
        (404, '{"detail":"Not Found"}', "http_404"),
        (400, "This model's maximum context length is 32768 tokens.", "context_overflow"),
        (400, '{"error":{"code":"context_length_exceeded"}}', "context_overflow"),
        (400, "max_tokens must be at least 1", "http_400"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096", "context_overflow"),
        (500, "maximum context length", "http_500"),
        (503, "", "http_503"),
        (307, "", "http_307"),
    ],
)
def test_classes_of_answers(status: int, body: str, expected: str) -> None:
    assert errors.of_status(status, body) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("429 rate_limit_error", "slow down", "rate_limited"),
        ("rate_limit_exceeded None", "slow down", "rate_limited"),
        ("401 AuthenticationError", "bad key", "auth"),
        ("400 BadRequestError", "maximum context length is 9", "context_overflow"),
        ("context_length_exceeded None", "too long", "context_overflow"),
        ("404 NotFoundError", "The model `m` does not exist.", "model_not_found"),
        ("500 InternalServerError", "maximum context length", "stream_error_event"),
        ("503 None", "overloaded", "stream_error_event"),
        ("None None", "boom", "stream_error_event"),
        ("4290 None", "boom", "stream_error_event"),
        ("", "boom", "stream_error_event"),
    ],
)
def test_classes_of_errors_inside_a_200(kind: str, text: str, expected: str) -> None:
    assert errors.of_error_event(kind, text) == expected


def caused(*chain: BaseException) -> BaseException:
    for outer, inner in itertools.pairwise(chain):
        outer.__cause__ = inner
    return chain[0]


class ReadTimeout(Exception):  # noqa: N818 -- named as the library's
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caused(RuntimeError(), ConnectionRefusedError()), "connect_error"),
        (caused(RuntimeError(), OSError(), socket.gaierror()), "dns_error"),
        (caused(RuntimeError(), ssl.SSLCertVerificationError()), "tls_error"),
        (caused(RuntimeError(), ConnectionResetError()), "connection_reset"),
        (caused(RuntimeError(), errors.RequestFailure("timeout_total", "")), "timeout_total"),
        (caused(RuntimeError(), ReadTimeout(), TimeoutError()), "timeout_read"),
        (RuntimeError(), "connect_error"),
    ],
)
def test_classes_of_exceptions(error: BaseException, expected: str) -> None:
    assert errors.of_exception(error) == expected


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert errors.of_exception(first) == "connect_error"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "500", "retry-after": "2"}, 0.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({}, None),
    ],
)
def test_waits(headers: dict[str, str], expected: float | None) -> None:
    assert errors.retry_after_s(headers, NOW) == expected


def test_scrubbed_texts_hold_no_key() -> None:
    text = "bad key sk-demo-0001 in\nAuthorization: Bearer abc.def and gw-secret " + "x" * 500
    clean = errors.scrub(text, ["gw-secret"])
    assert not [word for word in ("sk-demo", "abc.def", "gw-secret", "\n") if word in clean]
    assert len(clean) == errors.TEXT_LIMIT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("HTTP 500 at http://10.0.0.1:8000/x", "HTTP 500 at http://10.0.0.2:8000/y"),
        ("id 123e4567-e89b-12d3-a456-426614174000 lost", "id deadbeefcafe lost"),
        ("prompt has 130001 tokens", "prompt has 9 tokens"),
        ("pod vllm-7d9f-abcde: gone at 12:00:01", "pod vllm-1a2b-abcde: gone at 13:05:59"),
    ],
)
def test_equal_failures_have_one_form(one: str, other: str) -> None:
    assert errors.normal_form(one) == errors.normal_form(other)


def test_different_failures_have_two_forms() -> None:
    assert errors.normal_form("HTTP 500 busy") != errors.normal_form("HTTP 503 busy")
    assert errors.normal_form("HTTP 503 a\x00b 7") == "HTTP 503 ab #"
