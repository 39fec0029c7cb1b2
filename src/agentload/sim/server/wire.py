"""What all parts of a response share, in the shape and field order of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of one response repeats."""

    response_id: str
    created_unix_s: int
    model: str
    fingerprint: str
    is_chat: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer is to be told: from the request and from the server's flags."""

    stream: bool = False
    include_usage: bool = False
    running_usage: bool = False
    token_ids: bool = False
    logprobs: int | None = None  # alternatives to tell for each token
    cached_tokens: bool = False  # --enable-prompt-tokens-details
    request_times: bool = False  # --enable-per-request-metrics
    interval: int = 1  # --stream-interval


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response, summed over its choices; `cached` None: not to be told."""

    prompt: int
    completion: int
    cached: int | None

    def running(self, is_chat: bool) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }
        if is_chat:
            counts["completion_tokens_details"] = {"reasoning_tokens": 0}
        return counts

    def final(self, is_chat: bool) -> dict[str, Any]:
        counts = self.running(is_chat)
        details = counts.pop("completion_tokens_details", None)
        if self.cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached}
            if is_chat:
                counts["prompt_tokens_details"]["created_cache_tokens"] = 0
        if details is not None:
            counts["completion_tokens_details"] = details
        return counts

    def unstreamed(self, is_chat: bool) -> dict[str, Any]:
        counts = self.running(is_chat)
        details = counts.pop("completion_tokens_details", None)
        prompt_details = None
        if self.cached is not None:
            created = 0 if is_chat else None
            prompt_details = {
                "cached_tokens": self.cached,
                "created_cache_tokens": created,
                "multimodal_tokens": None,
            }
        counts["prompt_tokens_details"] = prompt_details
        counts["completion_tokens_details"] = details
        return counts


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_event(error: Mapping[str, Any]) -> bytes:
    """An error told inside a 200 stream; vLLM writes this one with spaces."""
    spaced = ", ".join(f'"{key}": {orjson.dumps(value).decode()}' for key, value in error.items())
    return b'data: {"error": {' + spaced.encode() + b"}}\n\n"


def usage_chunk(identity: Identity, usage: Usage, metrics: Mapping[str, Any] | None) -> bytes:
    """The chunk without choices that `include_usage` asks for."""
    data: dict[str, Any] = {
        "id": identity.response_id,
        "object": "chat.completion.chunk" if identity.is_chat else "text_completion",
        "created": identity.created_unix_s,
        "model": identity.model,
        "choices": [],
        "usage": usage.final(identity.is_chat),
        "system_fingerprint": identity.fingerprint,
    }
    if metrics is not None:
        data["metrics"] = metrics
    return event(data)
