"""The body of a session's requests, as the scenario and the settings together ask for it."""

from __future__ import annotations

from typing import Any

from agentload.client.body import PlainTextBody, PromptBody, TextBody
from agentload.client.settings import TargetSettings
from agentload.scenario.model import Scenario


def new_body(scenario: Scenario, settings: TargetSettings, model: str | None) -> PromptBody:
    """An empty history with the parameters that all of its requests have."""
    params = _fixed_params(scenario, settings, model)
    if scenario.wire == "chat":
        return PromptBody(params)
    return PlainTextBody(params) if scenario.content.cut == "inside_word" else TextBody(params)


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
