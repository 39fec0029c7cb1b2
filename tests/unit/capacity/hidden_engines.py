"""Engines whose step cost has no form of the model's, and how intervals cover the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from agentload.capacity.calibrate.course import Course
from agentload.capacity.calibrate.gathered import Gathered, Limits
from agentload.capacity.cost.fit import Fit, Prior, fit_form, prior_around
from agentload.capacity.cost.form import FORMS, NAMES, cost_of
from agentload.capacity.cost.posterior import Belief, believe
from agentload.sim.core import EngineConfig, StepCost
from agentload.sim.profiles import load_profile
from tests.unit.capacity.virtual_server import VirtualServer, linear, tiles

Shape = Callable[[float, float, float, float], float]


def strange(c: StepCost, rng: random.Random) -> Shape:
    """A roofline over tiles whose attention, batch and cache terms are not linear either.

    Decode batches are padded to CUDA-graph sizes, small chunks waste attention, sampling grows
    less than linearly, reading few cached tokens is slower for each than reading many.
    """
    tile = rng.choice([64, 128, 256])
    free = c.c0 * rng.uniform(0.1, 0.5)
    waste = rng.uniform(0.0, 0.15)
    power = rng.uniform(0.85, 1.0)
    latency = rng.uniform(0.0, 0.1)
    pad = rng.choice([1, 4, 8])

    def shape(p: float, d: float, k: float, a: float) -> float:
        tokens = tile * math.ceil((p + d) / tile) if p else d
        padded = pad * math.ceil(d / pad)
        step = free + max(c.c0 - free, c.c1 * tokens) + c.c2 * padded**power
        attention = c.c4 * a * (1 + waste * math.exp(-p / 512))
        return step + c.c3 * k * (1 + latency * math.exp(-k / 30_000)) + attention

    return shape


HIDDEN: dict[str, Callable[[StepCost, random.Random], Shape]] = {
    "linear": lambda c, _: linear(c),
    "tiles": lambda c, rng: tiles(c, rng.choice([64, 128, 256]), c.c0 * rng.uniform(0.1, 0.4)),
    "strange": strange,
}


@dataclass(frozen=True)
class Calibrated:
    """One calibration of one hidden engine."""

    shape: Shape
    config: EngineConfig
    depth: int
    gathered: Gathered
    fits: dict[str, Fit]
    belief: Belief

    @property
    def form(self) -> str:
        return self.belief.fit.form


def engine(gpu: str) -> tuple[StepCost, EngineConfig]:
    profile = load_profile(gpu, "Qwen2.5-7B", max_model_len=131_072)
    return profile.cost, profile.engine_config()


def prior_off(c: StepCost, rng: random.Random) -> Prior:
    """A data sheet that misses each coefficient by up to a factor of 1.7."""
    values = (c.c0, c.c1, c.c2, c.c3, c.c4)
    off = {n: v * math.exp(rng.uniform(-0.53, 0.53)) for n, v in zip(NAMES, values, strict=False)}
    return prior_around(off, 2.0, "data sheet")


def calibrated(gpu: str, depth: int, kind: str, seed: int, *, draws: int = 60) -> Calibrated:
    rng = random.Random(seed)
    cost, config = engine(gpu)
    shape = HIDDEN[kind](cost, rng)
    server = VirtualServer(config, shape, seed=seed)
    prior = prior_off(cost, rng)
    limits = Limits(131_072, config.usable_blocks * 16, 16)
    gathered = Course(server, prior, depth, 120.0, limits).run()
    at = gathered.observations()
    fits = {form: fit_form(at, prior, form) for form in FORMS}
    best = min(fits.values(), key=lambda fit: fit.chi2)
    return Calibrated(
        shape, config, depth, gathered, {**fits}, believe(at, prior, best, draws=draws, seed=seed)
    )


def questions(depth: int, budget: int) -> dict[str, Callable[[Shape], float]]:
    """What a planner asks of a step cost; seconds."""

    def cold(tokens: int) -> Callable[[Shape], float]:
        def seconds(step: Shape) -> float:
            done = total = 0.0
            while done < tokens:
                size = min(budget, tokens - done)
                total += step(size, 0, 0, size * (done + size / 2))
                done += size
            return total

        return seconds

    return {
        "cold at depth": cold(depth),
        "cold at half": cold(depth // 2),
        "turn of 450": lambda step: step(450, 0, 0, 450 * (depth + 225)),
        "turn beside 8": lambda step: step(450, 8, 8 * depth, 450 * (depth + 225)),
        "10 decode at depth": lambda step: step(0, 10, 10 * depth, 0),
        "32 decode at 2K": lambda step: step(0, 32, 32 * 2048, 0),
    }


def covered(one: Calibrated, seed: int) -> Iterator[tuple[str, bool, float]]:
    """(question, whether the 90 % interval holds the truth, relative error of the middle)."""
    rng = np.random.default_rng(seed)
    belief = one.belief
    costs = [cost_of(theta, belief.fit.form) for theta in belief.draws]
    factors = np.exp(rng.normal(0, belief.discrepancy, (len(costs), 8)))
    for name, ask in questions(one.depth, one.config.max_num_batched_tokens).items():
        truth = ask(one.shape)
        values = np.array([ask(cost.step_s) for cost in costs])[:, None] * factors
        low, high = np.quantile(values, [0.05, 0.95])
        yield name, bool(low <= truth <= high), float(np.median(values) / truth - 1)
