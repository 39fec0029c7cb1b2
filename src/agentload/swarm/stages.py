"""When a run has how many users: its stages as arithmetic on seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from agentload.scenario.running import Stage

WARM_UP = "warm_up"
WARM_UP_RATE = 100.0  # users per second: what Locust starts without a warning
FLAGS_STAGE = "run"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage in its place. `ends_s` is infinite for a run that goes on until it is stopped."""

    name: str
    starts_s: float
    ends_s: float
    users: int
    users_before: int
    ramp_s: float
    measured: bool

    @property
    def rate(self) -> float:
        """Users started or stopped per second while the stage ramps."""
        change = abs(self.users - self.users_before)
        return change / self.ramp_s if change and self.ramp_s > 0 else WARM_UP_RATE


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages of a run. Seconds count from the moment the warm-up is over."""

    steps: tuple[Step, ...]

    @property
    def planned_s(self) -> float | None:
        """Length of all stages; None when the run goes on until it is stopped."""
        end_s = self.steps[-1].ends_s
        return None if math.isinf(end_s) else end_s

    @property
    def warm_up_users(self) -> int:
        return self.steps[0].users

    def at(self, seconds: float) -> Step | None:
        """The stage of a moment; None when all are over. Before the first it is the first."""
        return next((step for step in self.steps if seconds < step.ends_s), None)

    def name_at(self, seconds: float) -> str:
        """What a turn sent at this moment is labelled; after the end the last stage drains."""
        step = self.at(seconds)
        return WARM_UP if seconds < 0 else (step or self.steps[-1]).name

    def measured_window_s(self) -> tuple[float | None, float | None]:
        """From the first measured stage's start to the last one's end; None = no such bound."""
        measured = [step for step in self.steps if step.measured]
        if not measured:
            return None, None
        end_s = measured[-1].ends_s
        return measured[0].starts_s, None if math.isinf(end_s) else end_s

    def first_start_s(self, user: int) -> float:
        """When a user that waited through the warm-up begins, so that the first ramp holds."""
        first = self.steps[0]
        return first.ramp_s * user / first.users if user < first.users else 0.0

    def as_json(self) -> list[dict[str, Any]]:
        rows = [asdict(step) for step in self.steps]
        return [{k: None if v == math.inf else v for k, v in row.items()} for row in rows]


def plan_of_stages(stages: Iterable[Stage]) -> StagePlan:
    """The plan of a scenario's stages, one after the other."""
    steps: list[Step] = []
    at_s, users = 0.0, 0
    for stage in stages:
        end_s = at_s + stage.duration_s
        steps.append(
            Step(stage.name, at_s, end_s, stage.users, users, stage.ramp_s, stage.measured)
        )
        at_s, users = end_s, stage.users
    return StagePlan(tuple(steps))


def plan_of_flags(users: int, spawn_rate: float, run_time_s: float | None) -> StagePlan:
    """The plan of `--users`, `--spawn-rate` and `--run-time`: one stage, all of it measured."""
    end_s = math.inf if run_time_s is None else float(run_time_s)
    ramp_s = min(users / spawn_rate, end_s)
    return StagePlan((Step(FLAGS_STAGE, 0.0, end_s, users, 0, ramp_s, True),))
