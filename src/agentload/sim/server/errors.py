"""Refusals in the words and status codes of vLLM's API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a"
    " different instance."
)


class ApiError(Exception):
    """A request that is refused; `body` is the JSON that tells the client why."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.details = {"message": message, "type": kind, "param": param, "code": status}

    def body(self) -> bytes:
        return orjson.dumps({"error": self.details})


def bad_parameter(message: str, param: str, value: object = None) -> ApiError:
    """400 for a well-formed parameter whose value cannot be served."""
    shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return ApiError(400, f"{message} ({shown})", param=param)


def unknown_model(model: object, served: Sequence[str]) -> ApiError:
    aliases = ", ".join(served)
    message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
    return ApiError(404, message, "NotFoundError", "model")


def busy() -> ApiError:
    return ApiError(503, BUSY, "Service Unavailable")


def prompt_too_long(prompt_tokens: int, max_model_len: int) -> ApiError:
    return bad_parameter(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
        f" contains {prompt_tokens} input tokens, which exceeds this limit even without any output"
        " tokens. Please reduce the length of the input prompt.",
        "input_tokens",
        prompt_tokens,
    )


def no_room_for_output(prompt_tokens: int, output_tokens: int, max_model_len: int) -> ApiError:
    return bad_parameter(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        f" {output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, for"
        f" a total of {prompt_tokens + output_tokens} tokens. Please reduce the length of the input"
        " prompt or the number of requested output tokens.",
        "input_tokens",
        prompt_tokens,
    )


def output_too_long(output_tokens: int, max_model_len: int) -> ApiError:
    return bad_parameter(
        f"max_tokens={output_tokens} cannot be greater than max_model_len={max_model_len}. Please"
        " request fewer output tokens.",
        "max_tokens",
        output_tokens,
    )


def invalid_body(faults: Sequence[Mapping[str, Any]]) -> ApiError:
    """400 for a body that does not have the fields asked for; `faults` as pydantic lists them."""
    told = [_told(fault) for fault in faults]
    lines = "".join(f"\n  {one}" for one in told)
    head = f"{len(told)} validation error{'s' if len(told) > 1 else ''}:"
    return ApiError(400, head + lines, "Bad Request", told[0]["loc"])


def _told(fault: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "type": fault["type"],
        "loc": ".".join(map(str, ("body", *fault["loc"]))),
        "msg": fault["msg"],
        "input": _summary(fault["input"]),
    }
    if "ctx" in fault:
        told["ctx"] = {key: str(value) for key, value in fault["ctx"].items()}
    return told


def _summary(given: object) -> object:
    """A container is named by its size: a refusal must not repeat a prompt of 450 KB."""
    if isinstance(given, dict | list):
        return f"<{type(given).__name__} of {len(given)} items>"
    if isinstance(given, str) and len(given) > 200:
        return f"<str of {len(given)} characters>"
    return given
