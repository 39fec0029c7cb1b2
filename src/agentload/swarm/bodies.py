"""The body of a session's requests, as the scenario and the settings together ask for it."""

from __future__ import annotations

from typing import Any

from agentload.client.body import PlainTextBody, PromptBody, TextBody
from agentload.client.settings import TargetSettings
from agentload.client.token_body import PlainTokenBody, TokenBody, Tokenizer
from agentload.client.tokenizers import SERVER, TokenSource
from agentload.scenario.model import Scenario


def new_body(
    scenario: Scenario,
    settings: TargetSettings,
    model: str | None,
    tokenizer: Tokenizer | None = None,
) -> PromptBody:
    """An empty history with the parameters that all of its requests have.

    `tokenizer` is needed for wire `token_ids`. Text cut inside words goes without role marks.
    """
    params = _fixed_params(scenario, settings, model)
    plain = scenario.content.cut == "inside_word"
    if scenario.wire == "token_ids":
        if tokenizer is None:
            raise ValueError("wire token_ids needs a tokenizer")
        return (PlainTokenBody if plain else TokenBody)(params, tokenizer)
    if scenario.wire == "completions":
        return (PlainTextBody if plain else TextBody)(params)
    return PromptBody(params)


def token_source(scenario: Scenario, model: str | None, cuts: bool) -> TokenSource | None:
    """Where the ids of the scenario's prompts come from; None where prompts are text."""
    if scenario.wire != "token_ids":
        return None
    return TokenSource(scenario.tokenizer or SERVER, model or "", cuts)


def _fixed_params(
    scenario: Scenario, settings: TargetSettings, model: str | None
) -> dict[str, Any]:
    request = scenario.request
    params: dict[str, Any] = {"model": model, **request.extra}
    temperature = settings.temperature
    temperature = request.temperature if temperature is None else temperature
    return params if temperature is None else {**params, "temperature": temperature}


def turn_params(scenario: Scenario, settings: TargetSettings, output_tokens: int) -> dict[str, Any]:
    """The parameters of one turn. With `exact_output` the answer has just this length."""
    limit = settings.max_tokens
    tokens = output_tokens if limit is None else min(output_tokens, limit)
    exact = {"min_tokens": tokens, "ignore_eos": True}
    return {"max_tokens": tokens, **(exact if scenario.request.exact_output else {})}
