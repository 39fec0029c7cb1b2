"""Everything that is decided before a run begins: scenario, target, stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentload.client.settings import SettingsError, TargetSettings
from agentload.recording.manifest import checked_run_id
from agentload.scenario import Scenario, load
from agentload.scenario.pace import at_pace
from agentload.scenario.running import Stage
from agentload.swarm.options import dcgm_pages, scenario_overrides, server_settings
from agentload.swarm.stages import StagePlan, Step, plan_of_flags, plan_of_stages
from agentload.swarm.target import target_settings

ENDLESS_S = 366 * 86_400.0  # a scenario's stage has an end


class InputError(Exception):
    """Something the user gave cannot be used; the text has every fault, and no secret."""


@dataclass(frozen=True, slots=True)
class Flags:
    """`--users`, `--spawn-rate` and `--run-time`, taken from Locust so that stages rule alone."""

    users: int | None
    spawn_rate: float | None
    run_time_s: float | None

    @property
    def given(self) -> bool:
        return self.users is not None or self.run_time_s is not None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be run, read and checked without the target being asked."""

    scenario: Scenario
    stages: StagePlan
    settings: TargetSettings
    sources: dict[str, str]
    run_id: str | None  # None: to be made
    gpu_pages: tuple[str, ...] = ()  # of DCGM exporters
    server_settings: Mapping[str, str] = field(default_factory=dict)  # told beside what it tells

    @property
    def warms_up(self) -> bool:
        """Whether turns come before the first stage."""
        turns = self.scenario.warm_up.turns_per_session
        return bool(not self.scenario.sessions_arrive and turns and self.stages.warm_up_users)

    def at_pace(self, pace: float | None) -> Wishes:
        """For a target at this many times real time; None: the target is no simulator."""
        return replace(self, scenario=at_pace(self.scenario, pace or 1.0))

    def first_step(self) -> Step:
        """What Locust starts with: the warm-up has the first stage's users at once."""
        first = self.stages.steps[0]
        return replace(first, ramp_s=0.0) if self.warms_up else first


def read_wishes(options: Any, host: str | None, env: Mapping[str, str], flags: Flags) -> Wishes:
    """Scenario, settings and stages; raises InputError with the faults of all of them."""
    faults: list[str] = []
    scenario = _scenario(options, faults)
    settings, sources = TargetSettings(), dict[str, str]()
    try:
        settings, sources = target_settings(options, host, env)
    except SettingsError as error:
        faults.extend(error.faults)
    pages, given_settings = _told_beside(options, env, faults)
    run_id = None
    try:
        run_id = checked_run_id(options.run_id) if options.run_id else None
    except ValueError as error:
        faults.append(str(error))
    if scenario is not None and flags.given and scenario.arrivals.population == "open":
        faults.append(
            "--users and --run-time: arrivals.population is open, its stages cannot be set aside"
        )
    if getattr(options, "enable_rebalancing", False):
        faults.append(
            "--enable-rebalancing: users of a worker that is cut off would be dealt out again "
            "while it still loads, so the target would see more than the plan: leave it out"
        )
    if scenario is not None and options.record_on == "worker":
        faults += _rules_that_need_rows(scenario)
    if scenario is None or faults:
        raise InputError("\n".join(faults))
    stages = stages_of(scenario, flags)
    if flags.given:  # what goes by the scenario's stages (interference) then goes by the one stage
        scenario = scenario.model_copy(update={"stages": (_as_stage(stages.steps[0]),)})
    return Wishes(scenario, stages, settings, sources, run_id, pages, given_settings)


def _told_beside(
    options: Any, env: Mapping[str, str], faults: list[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The GPU pages and the server's settings as given; a fault of either goes to `faults`."""
    pages: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    if "@" in options.metrics_url:
        faults.append(
            "--metrics-url carries a user name or password, which the process list would show;"
            " scrape a page that needs none"
        )
    try:
        pages = dcgm_pages(options, env)
    except ValueError as error:
        faults.append(str(error))
    try:
        settings = server_settings(options)
    except ValueError as error:
        faults.append(str(error))
    return pages, settings


def _rules_that_need_rows(scenario: Scenario) -> list[str]:
    return [
        f"--record-on worker: stop.{key} needs the rows on the master: "
        "use --record-on master, or end by stages or stop.after_s"
        for key in ("after_turns", "ttft_p99_interval")
        if getattr(scenario.stop, key) is not None
    ]


def _as_stage(step: Step) -> Stage:
    duration_s = min(step.ends_s, ENDLESS_S)
    return Stage(name=step.name, duration_s=duration_s, users=step.users, ramp_s=step.ramp_s)


def stages_of(scenario: Scenario, flags: Flags) -> StagePlan:
    """The scenario's stages, or the one stage that the flags describe when there are any.

    A flag that is missing beside one that was given comes from the scenario's first stage.
    """
    if not flags.given:
        return plan_of_stages(scenario.stages)
    users = scenario.stages[0].users if flags.users is None else flags.users
    return plan_of_flags(max(1, users), flags.spawn_rate or float(max(1, users)), flags.run_time_s)


def _scenario(options: Any, faults: list[str]) -> Scenario | None:
    if not options.scenario:
        faults.append("no scenario: give --scenario FILE, for example scenarios/steady-append.yaml")
        return None
    try:
        return load(Path(options.scenario), scenario_overrides(options))
    except ValueError as error:  # of an override, or a ScenarioError
        faults.append(str(error))
        return None
