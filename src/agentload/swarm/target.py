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
