"""What is asked of a target before the first load request is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agentload.client.body import PromptBody
from agentload.client.errors import MENDS, NO_MODEL_LIST, RequestFailure
from agentload.client.models import ServedModels, compare_models
from agentload.client.tokenizers import server_encoder
from agentload.client.transport import Client
from agentload.workload.turn import Message


class PreflightError(Exception):
    """The target cannot be loaded as configured; the text says what was seen and the mend."""

    def __init__(self, error_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class


@dataclass(frozen=True, slots=True)
class Target:
    """A target that answered and serves the model."""

    model: str
    served: tuple[str, ...]
    max_model_len: int | None
    warnings: tuple[str, ...]


def check_target(client: Client, longest_tokens: int | None = None) -> Target:
    """Ask the target for its models before any load is sent. Raises `PreflightError`.

    `longest_tokens` is the longest planned prompt with its answer, checked against
    `max_model_len` where the server tells it.
    """
    settings = client.settings
    try:
        page = client.ask("GET", "/models").json()
    except RequestFailure as failure:
        if failure.error_class in NO_MODEL_LIST and settings.model:
            warning = f"{settings.base_url}/models: {failure.error_class}; the model is not checked"
            return Target(settings.model, (), None, (warning,))
        mend = MENDS.get(failure.error_class, "look into the server's log")
        raise PreflightError(
            failure.error_class, f"{settings.base_url}: {failure}; to mend: {mend}"
        ) from None
    found = compare_models(settings.model, page)
    if found.model is None:
        raise PreflightError("model_not_found", _no_model(settings.model, found))
    _check_length(found, longest_tokens)
    return Target(found.model, found.served, found.max_model_len, ())


def _no_model(configured: str | None, found: ServedModels) -> str:
    served = ", ".join(found.served) or "none"
    asked = f"model {configured!r} is not served" if configured else "no model is configured"
    mend = found.suggestion or "one of these"
    return f"{asked}; served: {served}; to mend: set the model (OPENAI_MODEL) to {mend}"


def _check_length(found: ServedModels, longest_tokens: int | None) -> None:
    limit = found.max_model_len
    if longest_tokens is not None and limit is not None and longest_tokens > limit:
        raise PreflightError(
            "context_overflow",
            f"the longest planned prompt with its answer has {longest_tokens} tokens, "
            f"max_model_len of {found.model} is {limit}; to mend: start the server with a larger "
            "--max-model-len, or scale the contexts down (context_scale)",
        )


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of a text by the server's own count."""

    tokens: int
    source: Literal["tokenize", "usage"]


def count_tokens(client: Client, model: str, pieces: Iterable[bytes]) -> TokenCount | None:
    """Tokens of a JSON-escaped text: by `/tokenize`, else by the usage of two one-token requests
    (with the text and without). None when the server tells neither."""
    text = b"".join(pieces)
    counted = _by_tokenize(client, model, text)
    if counted is not None:
        return TokenCount(counted, "tokenize")
    whole, empty = (_prompt_tokens(client, model, content) for content in (text, b""))
    if whole is None or empty is None:
        return None
    return TokenCount(whole - empty, "usage")


def _by_tokenize(client: Client, model: str, text: bytes) -> int | None:
    try:
        return len(server_encoder(client, model)(json.loads(b'"%b"' % text)))
    except RequestFailure:
        return None


def _prompt_tokens(client: Client, model: str, text: bytes) -> int | None:
    body = PromptBody({"model": model, "max_tokens": 1, "temperature": 0})
    body.add([Message("user", (text,))])
    return client.stream(body, request_id="preflight-count").prompt_tokens
