"""When sessions start: pure functions of the stages, the seed and the time since the run began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agentload.scenario.model import Scenario
from agentload.scenario.running import Stage


def planned_duration_s(stages: Sequence[Stage]) -> float:
    """Seconds of all stages."""
    return sum(stage.duration_s for stage in stages)


@dataclass(frozen=True, slots=True)
class Start:
    """A session start of an open population: its index and its instant since the run's start."""

    index: int
    at_s: float


def open_starts(scenario: Scenario) -> Iterator[Start]:
    """The session starts of an open population, in order of time.

    Gaps are Gamma distributed with mean 1 / `sessions_per_s` of the stage they begin in, and with
    the coefficient of variation `arrivals.cv`; 1 is a Poisson process. All workers see the same
    series, and each takes the indices that are its own. Nothing for a closed population.
    """
    if scenario.arrivals.population != "open":
        return
    rng = Random(f"{scenario.seed}/arrivals")
    cv, index, begun_s = scenario.arrivals.cv, 0, 0.0
    for stage in scenario.stages:
        if stage.sessions_per_s is None:
            raise ValueError(f"stage {stage.name} has no sessions_per_s")
        shape = cv**-2
        # A stage starts with a fresh gap: of a Poisson process the rest of a gap is again one.
        at_s = 0.0
        while True:
            at_s += rng.gammavariate(shape, 1.0 / (shape * stage.sessions_per_s))
            if at_s >= stage.duration_s:
                break
            yield Start(index, begun_s + at_s)
            index += 1
        begun_s += stage.duration_s


def interference_starts(scenario: Scenario) -> Iterator[Start]:
    """The prompts of `interference`, `burst` at the same instant every `every_s` of all stages."""
    settings = scenario.interference
    if settings is None:
        return
    number, rounds = 0, 1
    end_s = planned_duration_s(scenario.stages)
    while rounds * settings.every_s < end_s:
        for _ in range(settings.burst):
            yield Start(number, rounds * settings.every_s)
            number += 1
        rounds += 1
