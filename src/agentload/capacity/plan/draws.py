"""What the step costs may be, as a handful of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from agentload.sim.core import Frontend, StepCost
from agentload.sim.profiles.coefficients import Coefficient, CostFile


@dataclass(frozen=True, slots=True)
class CostDraw:
    """One possible engine; `ttft_factor` is what the model itself gets wrong about TTFT."""

    cost: StepCost
    base_s: float
    per_token_s: float
    ttft_factor: float = 1.0

    def frontend(self) -> Frontend:
        """A fresh tokenizer queue: it holds state."""
        return Frontend(self.base_s, self.per_token_s)


def at_speed(draw: CostDraw, speed: float) -> CostDraw:
    """The engine as a simulator at `speed` times real time shows it."""
    cost = draw.cost
    c0, c1, c2, c3, c4, c5 = (
        value / speed for value in (cost.c0, cost.c1, cost.c2, cost.c3, cost.c4, cost.c5)
    )
    scaled = StepCost(c0, c1, c2, c3, c4, c5, form=cost.form)
    return CostDraw(scaled, draw.base_s / speed, draw.per_token_s / speed, draw.ttft_factor)


def central(file: CostFile) -> CostDraw:
    """The values of the file."""
    frontend = file.frontend
    return CostDraw(file.step_cost(), frontend.base_s.value, frontend.per_token_s.value)


def drawn(file: CostFile, count: int, seed: int) -> list[CostDraw]:
    """`count` samples: the file's joint draws where it has any, else each coefficient by itself,
    log-normal over its interval; each with the model's own error on step times and on TTFT."""
    rng = Random(f"{seed}/costs")
    order = list(range(len(file.draws)))
    rng.shuffle(order)
    found = []
    for number in range(count):
        values = file.draws[order[number % len(order)]] if order else _independent(file, rng)
        steps = math.exp(rng.gauss(0.0, file.step_discrepancy))
        *step, base_s, per_token_s = values
        c0, c1, c2, c3, c4, c5 = (steps * value for value in step)
        cost = StepCost(c0, c1, c2, c3, c4, c5, form=file.form)
        factor = math.exp(rng.gauss(0.0, file.ttft_discrepancy))
        found.append(CostDraw(cost, base_s, per_token_s, factor))
    return found


def _independent(file: CostFile, rng: Random) -> list[float]:
    step, frontend = file.step, file.frontend
    coefficients = (step.c0, step.c1, step.c2, step.c3, step.c4, step.c5)
    return [_draw(c, file.interval_share, rng) for c in coefficients] + [
        _draw(frontend.base_s, file.interval_share, rng),
        _draw(frontend.per_token_s, file.interval_share, rng),
    ]


def _draw(coefficient: Coefficient, share: float, rng: Random) -> float:
    low, high = coefficient.low, coefficient.high
    gauss = rng.gauss(0.0, 1.0)
    if not low or not high or low == high:
        return coefficient.value
    reach = NormalDist().inv_cdf((1 + share) / 2)
    return coefficient.value * math.exp(gauss * math.log(high / low) / (2 * reach))
