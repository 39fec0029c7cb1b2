"""Requests of the OpenAI surface: from bytes to checked fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict

from agentload.sim.server import errors, tokens


class _Function(TypedDict):
    name: str
    arguments: str


class _ToolCall(TypedDict):
    function: _Function


class _TextPart(TypedDict):
    type: Literal["text"]
    text: str


class Message(TypedDict, total=False):
    role: str
    content: str | list[_TextPart] | None
    tool_calls: list[_ToolCall] | None


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(BaseModel):
    """Fields that are read; any other field of the OpenAI or vLLM surface is accepted unread."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class GenerationBody(_Body):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None


class ChatBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True


class CompletionBody(GenerationBody):
    prompt: Any = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = False


class TokenizeBody(_Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(_Body):
    model: str | None = None
    tokens: list[int] = Field()


class FaultsBody(_Body):
    faults: list[str]


BodyType = TypeVar("BodyType", bound=_Body)


def parse(kind: type[BodyType], data: bytes) -> BodyType:
    """The body as `kind`; raises ApiError 400 with vLLM's text for bad JSON or bad fields."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise errors.invalid_body([_json_fault(data, error)]) from None
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise errors.invalid_body([dict(fault) for fault in faults]) from None


def _json_fault(data: bytes, seen: orjson.JSONDecodeError) -> dict[str, Any]:
    """vLLM reports the standard library's position and words, which differ from orjson's."""
    position, words = seen.pos, seen.msg
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        position, words = error.pos, error.msg
    except UnicodeDecodeError:
        pass
    return {
        "type": "json_invalid",
        "loc": (position,),
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": words},
    }


def check_sampling(body: GenerationBody) -> None:
    """Refuse what vLLM's SamplingParams refuses among the fields that are read here."""
    if body.stream_options and not body.stream:
        message = "Stream options can only be defined when `stream=True`."
        raise errors.bad_parameter(message, "stream_options")
    if body.cache_salt == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise errors.bad_parameter(message, "cache_salt")
    if body.temperature is not None and body.temperature < 0:
        raise _out_of_range("temperature", "non-negative", body.temperature)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise _out_of_range("top_p", "in (0, 1]", body.top_p)
    if body.n < 1:
        raise _out_of_range("n", "at least 1", body.n)
    if body.min_tokens < 0:
        raise _out_of_range("min_tokens", "greater than or equal to 0", body.min_tokens)


def _out_of_range(name: str, allowed: str, value: float) -> errors.ApiError:
    return errors.bad_parameter(f"{name} must be {allowed}, got {value}.", name, value)


def told_logprobs(body: GenerationBody) -> int | None:
    """How many alternatives to tell for each token; None: no log probabilities at all."""
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    return body.logprobs if isinstance(body, CompletionBody) else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens an answer may have. `limit` None: up to the end of the context."""

    limit: int | None
    least: int
    ignore_end: bool


def lengths(body: GenerationBody, limit: int | None) -> Lengths:
    """Checked output lengths; raises ApiError."""
    if limit is not None and limit < 1:
        raise _out_of_range("max_tokens", "at least 1", limit)
    if limit is not None and body.min_tokens > limit:
        allowed = f"less than or equal to max_tokens={limit}"
        raise _out_of_range("min_tokens", allowed, body.min_tokens)
    return Lengths(limit, body.min_tokens, body.ignore_eos)


def most_output(prompt_tokens: int, limit: int | None, max_model_len: int) -> int:
    """The largest number of output tokens of one answer; raises ApiError when there is no room."""
    if limit is not None and limit > max_model_len:
        raise errors.output_too_long(limit, max_model_len)
    if prompt_tokens >= max_model_len:
        raise errors.prompt_too_long(prompt_tokens, max_model_len)
    if limit is not None and prompt_tokens + limit > max_model_len:
        raise errors.no_room_for_output(prompt_tokens, limit, max_model_len)
    return max_model_len - prompt_tokens if limit is None else limit


def chat_words(body: ChatBody | TokenizeBody) -> bytes:
    """The prompt of a chat in words."""
    messages: Sequence[Mapping[str, Any]] = body.messages or ()
    for index, message in enumerate(messages):
        if "role" not in message:
            fault = {"type": "missing", "loc": ("messages", index, "role"), "msg": "Field required"}
            raise errors.invalid_body([{**fault, "input": message}])
    tools = orjson.dumps(body.tools).decode() if body.tools else None
    return tokens.encode_chat(messages, tools, body.add_generation_prompt)


@dataclass(frozen=True, slots=True)
class Prompt:
    words: bytes
    is_token_ids: bool  # such a prompt skips the tokenizer


def completion_prompts(given: Any) -> list[Prompt]:
    """The prompts of a completion request: text, token ids, or a list of either."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise errors.ApiError(400, "You must pass at least one prompt")
    if isinstance(given[0], int):
        given = [given]
    prompts = [_prompt(one) for one in given]
    if any(not prompt.words for prompt in prompts):
        raise errors.ApiError(400, "The decoder prompt cannot be empty")
    return prompts


def _prompt(given: Any) -> Prompt:
    if isinstance(given, str):
        return Prompt(tokens.encode_text(given), False)
    if not isinstance(given, list):
        fault = {"type": "string_type", "loc": ("prompt",), "msg": "Input should be a valid string"}
        raise errors.invalid_body([{**fault, "input": given}])
    try:
        return Prompt(tokens.encode_ids(given), True)
    except tokens.TokenIdError as error:
        raise errors.ApiError(400, str(error)) from None
