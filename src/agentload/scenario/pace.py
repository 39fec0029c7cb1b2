"""A scenario's times at another pace, for a target that is a simulator faster than real time."""

from __future__ import annotations

from agentload.scenario.distributions import (
    WAIT_PRESETS,
    Choice,
    Constant,
    Distribution,
    Lognormal,
    Mixture,
    Preset,
    Quantiles,
    Uniform,
)
from agentload.scenario.model import Scenario, Think
from agentload.scenario.running import Interference, Slo, Stage


def at_pace(scenario: Scenario, pace: float) -> Scenario:
    """The scenario for a target on which everything takes 1/`pace` of real time.

    Think times, gaps between arrivals, the instant of an interruption, SLO limits and the floor of
    a stall are divided, so that they keep their proportion to the target's own times. Stages,
    warm-up and deadlines are the operator's wall time and stay. The values of `scenario` are at
    `scenario.pace`, so applying this twice changes nothing more.
    """
    factor = pace / scenario.pace
    if factor == 1.0:
        return scenario
    aborts, interference = scenario.aborts, scenario.interference
    changed = {
        "pace": pace,
        "waits": _think(scenario.waits, factor),
        "stages": tuple(_stage(stage, factor) for stage in scenario.stages),
        "slos": {name: _slo(slo, factor) for name, slo in scenario.slos.items()},
        "stalls": scenario.stalls.model_copy(update={"min_s": scenario.stalls.min_s / factor}),
        "interference": None if interference is None else _often(interference, factor),
        "aborts": aborts
        and aborts.model_copy(update={"stream_tokens_per_s": aborts.stream_tokens_per_s * factor}),
    }
    return scenario.model_copy(update=changed)


def _think(waits: Think, factor: float) -> Think:
    human = None if waits.human is None else divided(waits.human, factor)
    return Think(tool=divided(waits.tool, factor), human=human)


def _stage(stage: Stage, factor: float) -> Stage:
    rate = stage.sessions_per_s
    return stage.model_copy(update={"sessions_per_s": None if rate is None else rate * factor})


def _slo(slo: Slo, factor: float) -> Slo:
    limits = slo.model_dump(exclude_none=True)
    return Slo(**{name: limit / factor for name, limit in limits.items()})


def _often(interference: Interference, factor: float) -> Interference:
    return interference.model_copy(update={"every_s": interference.every_s / factor})


def divided(dist: Distribution, factor: float) -> Distribution:
    """The distribution of the drawn value divided by `factor`; the same draws lead to it."""
    match dist:
        case Constant():
            return dist.model_copy(update={"value": dist.value / factor})
        case Uniform() | Lognormal():
            numbers = dist.model_dump(exclude={"dist", "sigma"}, exclude_none=True)
            return dist.model_copy(update={name: n / factor for name, n in numbers.items()})
        case Quantiles() | Choice():
            return dist.model_copy(update={"values": tuple(v / factor for v in dist.values)})
        case Mixture():
            parts = [p.model_copy(update={"of": divided(p.of, factor)}) for p in dist.parts]
            return dist.model_copy(update={"parts": tuple(parts)})
        case Preset():
            median, sigma = WAIT_PRESETS[dist.name]
            return Lognormal(
                dist="lognormal", median=median / factor, sigma=sigma, max=dist.max / factor
            )
