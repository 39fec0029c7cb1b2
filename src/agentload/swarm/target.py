"""The target as the command line, the environment and the scenario together describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentload.client.deadlines import Deadlines
from agentload.client.settings import TargetSettings, load_settings
from agentload.scenario.model import Scenario
from agentload.swarm.options import settings_file, target_flags

_DEFAULT = "default"


def target_settings(
    options: Any, host: str | None, env: Mapping[str, str]
) -> tuple[TargetSettings, dict[str, str]]:
    """The settings with each one's source; raises SettingsError with all faults."""
    return load_settings(target_flags(options, host), env, settings_file(options, env))


def in_force(
    scenario: Scenario, settings: TargetSettings, sources: Mapping[str, str], model: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Each setting as text with its source, as a run goes by it; keys and headers masked."""
    limits = deadlines_of(scenario, settings, sources)
    of_scenario = {
        "connect_timeout_s": limits.connect_s,
        "first_token_timeout_s": limits.first_token_s,
        "between_chunks_timeout_s": limits.between_chunks_s,
        "total_timeout_s": limits.total_s,
        "temperature": scenario.request.temperature,
    }
    shown, origin = settings.shown(), dict(sources)
    for name, value in of_scenario.items():
        if origin[name] == _DEFAULT and value is not None:
            shown[name], origin[name] = str(value), "scenario"
    if origin["model"] == _DEFAULT:
        shown["model"], origin["model"] = model, "the only one served"
    return shown, origin


def deadlines_of(
    scenario: Scenario, settings: TargetSettings, sources: Mapping[str, str]
) -> Deadlines:
    """The scenario's limits, each replaced by a setting that was given."""
    limits = scenario.deadlines
    wished = Deadlines.of(settings)

    def pick(name: str, of_scenario: float, of_settings: float) -> float:
        return of_scenario if sources.get(name, _DEFAULT) == _DEFAULT else of_settings

    return Deadlines(
        connect_s=pick("connect_timeout_s", limits.connect_s, wished.connect_s),
        first_token_s=pick("first_token_timeout_s", limits.first_token_s, wished.first_token_s),
        between_chunks_s=pick(
            "between_chunks_timeout_s", limits.between_chunks_s, wished.between_chunks_s
        ),
        total_s=pick("total_timeout_s", limits.total_s, wished.total_s),
    )
