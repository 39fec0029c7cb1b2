"""One event's JSON as the facts a measurement needs."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import orjson


class BadEventError(ValueError):
    """An event whose data is not a JSON object."""


class Output(NamedTuple):
    """Generated text of one event by channel; empty where there is none.

    `tool_calls` are (index, name, argument fragment), at least one of the two not empty.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[tuple[int, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


NO_OUTPUT = Output()


def parse_event(data: bytes) -> dict[str, Any]:
    """The event's object. Raises `BadEventError`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _lenient(data)
    if not isinstance(value, dict):
        raise BadEventError(f"event is not a JSON object: {data[:80]!r}")
    return value


def _lenient(data: bytes) -> object:
    # Servers send NaN in logprobs; halves of a surrogate pair come from cut characters.
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise BadEventError(f"event is not JSON: {data[:80]!r}") from None


def output_of(choice: dict[str, Any] | None) -> Output:
    """Generated text of a choice: a chat delta, or the text of a completion."""
    if choice is None:
        return NO_OUTPUT
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return Output(_text(choice.get("text")))
    content = delta.get("content")
    if type(content) is str and len(delta) == 1:  # nearly every chunk of a stream
        return Output(content)
    reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    calls = delta.get("tool_calls")
    if not isinstance(calls, list):  # the form before tools had numbers
        calls = [{"function": delta.get("function_call")}]
    return Output(_text(content) or _text(delta.get("refusal")), reasoning, _tool_calls(calls))


def first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """`choices[0]`, or None for an event without choices."""
    choices = event.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


class ServerError(NamedTuple):
    """What a server says in the place of an answer; `kind` is its code and type, as text."""

    text: str
    kind: str = ""


def error_of(event: dict[str, Any], name: bytes = b"") -> ServerError | None:
    """The failure that the event tells, else None.

    As an `error` member, as an event of that name, as vLLM told it once (`"object": "error"`), or
    as web frameworks do (`detail` or `message` where `choices` should be).
    """
    error = event.get("error")
    if error in (None, "", {}, False):
        if name != b"error" and ("choices" in event or not _is_complaint(event)):
            return None
        error = event
    if not isinstance(error, dict):
        return ServerError(str(error))
    message = error.get("message") or error.get("detail")
    text = message if isinstance(message, str) else json.dumps(error)
    code = error.get("code")
    if code is not None:
        text += f" (code {code})"
    return ServerError(text, f"{code} {error.get('type')}")


def _is_complaint(event: dict[str, Any]) -> bool:
    if "object" in event or "usage" in event:
        return event.get("object") == "error"
    return any(isinstance(event.get(key), str) for key in ("detail", "message"))


def count(value: object) -> int | None:
    """A token count: a whole number from 0, else None (a bool is none)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def tokens_in(choice: dict[str, Any]) -> int | None:
    """Tokens of a choice by its `token_ids` (vLLM's `return_token_ids`), else None."""
    ids = choice.get("token_ids")
    return len(ids) if isinstance(ids, list) else None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content parts
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _tool_calls(calls: list[Any]) -> tuple[tuple[int, str, str], ...]:
    found = []
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        index = count(call.get("index"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict) and arguments:
            arguments = json.dumps(arguments)
        name, fragment = _text(function.get("name")), _text(arguments)
        if name or fragment:
            found.append((position if index is None else index, name, fragment))
    return tuple(found)
