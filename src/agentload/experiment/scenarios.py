"""The scenario of each arm: the file's, with the overrides of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Experiment
from agentload.scenario import Scenario, ScenarioError, load
from agentload.scenario.pace import at_pace
from agentload.workload.content import Corpus
from agentload.workload.reach import planned_warning, sessions_end
from agentload.workload.traces.replay import load_replay, session_source

_ANY_WIDTH = 1 << 30


def base_scenario(experiment: Experiment, folder: Path) -> Scenario:
    """What all arms have in common; ScenarioError with every fault."""
    return load(folder / experiment.scenario, experiment.overrides)


def arm_scenarios(experiment: Experiment, folder: Path) -> dict[str, Scenario]:
    """Arm -> its scenario; ExperimentError names the faults of all arms."""
    made: dict[str, Scenario] = {}
    faults: list[str] = []
    for arm in experiment.arms:
        overrides = {**experiment.overrides, **arm.scenario}
        try:
            made[arm.name] = load(folder / experiment.scenario, overrides)
        except ScenarioError as error:
            faults += [f"arms.{arm.name}.scenario: {fault}" for fault in error.faults]
    if faults:
        raise ExperimentError("\n".join(faults))
    return made


def scenario_faults(experiment: Experiment, folder: Path) -> list[str]:
    """What is wrong with the scenario of all arms, and with what single arms change of it.

    A scenario that is not there is told elsewhere.
    """
    if not (folder / experiment.scenario).is_file():
        return []
    try:
        base_scenario(experiment, folder)
    except ScenarioError as error:
        return [f"{experiment.scenario}: {fault}" for fault in error.faults]
    try:
        arm_scenarios(experiment, folder)
    except ExperimentError as error:
        return str(error).splitlines()
    return []


def length_warnings(experiment: Experiment, scenarios: Mapping[str, Scenario]) -> list[str]:
    """Arms whose runs end before their sessions do, each sentence once with its arms."""
    speed = experiment.target.flags.get("speed", 1.0)
    pace = float(speed) if isinstance(speed, int | float) and speed > 0 else 1.0
    arms: dict[str, list[str]] = {}
    for arm, scenario in scenarios.items():
        if not sessions_end(scenario):
            continue
        paced = at_pace(scenario, pace)
        run_s = sum(stage.duration_s for stage in paced.stages)
        ratio, replay = paced.starting_chars_per_token, load_replay(paced)
        make = session_source(paced, Corpus(), ratio, None, replay=replay)
        warning = planned_warning(paced, make, run_s, pace)
        if warning is not None:
            arms.setdefault(warning, []).append(arm)
    return [f"{', '.join(of)}: {warning}" for warning, of in arms.items()]


def set_options(overrides: Mapping[str, object]) -> list[str]:
    """The overrides as `--set KEY=VALUE` of the Locust command, which reads the value as YAML."""
    words: list[str] = []
    for key, value in overrides.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=_ANY_WIDTH, allow_unicode=True)
        words += ["--set", f"{key}={text.removesuffix('...' + chr(10)).strip()}"]
    return words
