"""The distributions a scenario may name, each with a seeded draw.

A value outside `min`..`max` is set to the bound, so the bounds carry the mass beyond them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """A frozen model that takes no unknown key, no infinite number, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Bounded(Strict):
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    def clamp(self, value: float) -> float:
        """The value, or the bound it lies beyond."""
        if self.min is not None and value < self.min:
            return self.min
        if self.max is not None and value > self.max:
            return self.max
        return value


class Constant(Strict):
    """The same value each time."""

    dist: Literal["constant"]
    value: float

    def draw(self, rng: Random) -> float:  # noqa: ARG002 - all distributions are drawn alike
        return self.value

    def lowest(self) -> float:
        return self.value

    def highest(self) -> float:
        return self.value


class Uniform(_Bounded):
    """Every value from `min` to `max` alike."""

    dist: Literal["uniform"]
    min: float
    max: float

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.min, self.max)

    def lowest(self) -> float:
        return self.min

    def highest(self) -> float:
        return self.max


class Lognormal(_Bounded):
    """`median` * exp(`sigma` * Z) with Z standard normal, held within `min`..`max`."""

    dist: Literal["lognormal"]
    median: float = Field(gt=0)
    sigma: float = Field(ge=0)

    def draw(self, rng: Random) -> float:
        return self.clamp(self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)))

    def lowest(self) -> float:
        return 0.0 if self.min is None else self.min

    def highest(self) -> float:
        return math.inf if self.max is None else self.max


class Quantiles(Strict):
    """An empirical table: `values[i]` is the quantile at `p[i]`, straight lines in between."""

    dist: Literal["quantiles"]
    p: tuple[float, ...] = Field(strict=False)
    values: tuple[float, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _a_table(self) -> Self:
        if len(self.p) != len(self.values):
            raise ValueError(f"{len(self.p)} p for {len(self.values)} values; one each is needed")
        if len(self.p) < 2 or self.p[0] != 0.0 or self.p[-1] != 1.0:
            raise ValueError("p has to start at 0 and end at 1")
        if any(b <= a for a, b in zip(self.p, self.p[1:], strict=False)):
            raise ValueError("p has to rise from entry to entry")
        if any(b < a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError("values must not fall from entry to entry")
        return self

    def draw(self, rng: Random) -> float:
        u = rng.random()
        i = min(bisect_right(self.p, u), len(self.p) - 1) - 1
        share = (u - self.p[i]) / (self.p[i + 1] - self.p[i])
        return self.values[i] + share * (self.values[i + 1] - self.values[i])

    def lowest(self) -> float:
        return self.values[0]

    def highest(self) -> float:
        return self.values[-1]


class Choice(Strict):
    """One of `values`, in proportion to `weights`."""

    dist: Literal["choice"]
    values: tuple[float, ...] = Field(strict=False)
    weights: tuple[float, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _a_table(self) -> Self:
        if len(self.values) != len(self.weights):
            raise ValueError(
                f"{len(self.values)} values for {len(self.weights)} weights; one each is needed"
            )
        if any(w < 0 for w in self.weights) or sum(self.weights) <= 0:  # of none as well
            raise ValueError("weights have to be 0 or more, with a sum above 0")
        return self

    def draw(self, rng: Random) -> float:
        return self.values[pick(self.weights, rng)]

    def lowest(self) -> float:
        return min(self.values)

    def highest(self) -> float:
        return max(self.values)


class Mixture(Strict):
    """A draw from one of `parts`, chosen in proportion to their `weight`."""

    dist: Literal["mixture"]
    parts: tuple[Part, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _some_part(self) -> Self:
        if not self.parts:
            raise ValueError("parts: at least one is needed")
        return self

    def draw(self, rng: Random) -> float:
        return self.parts[pick([part.weight for part in self.parts], rng)].of.draw(rng)

    def lowest(self) -> float:
        return min(part.of.lowest() for part in self.parts)

    def highest(self) -> float:
        return max(part.of.highest() for part in self.parts)


# Medians and log-sigmas of published waits, in seconds. tracelab: arXiv 2606.30560 (tool P50 0.3,
# P90 13.6, P99 216; human P50 86, P90 1,236). kv-cache-tester: its recorded delay before a call
# that carries a tool result (P50 8.7, P90 73), which includes overhead of the agent itself.
WAIT_PRESETS: dict[str, tuple[float, float]] = {
    "tracelab_tool": (0.30, 2.9),
    "tracelab_human": (86.0, 2.08),
    "kv_cache_tester_tool": (8.7, 1.66),
}


class Preset(Strict):
    """A published wait by name (see `WAIT_PRESETS`), held at `max` seconds."""

    dist: Literal["preset"]
    name: Literal["tracelab_tool", "tracelab_human", "kv_cache_tester_tool"]
    max: float = Field(gt=0)

    def draw(self, rng: Random) -> float:
        median, sigma = WAIT_PRESETS[self.name]
        return min(self.max, median * math.exp(sigma * rng.gauss(0.0, 1.0)))

    def lowest(self) -> float:
        return 0.0

    def highest(self) -> float:
        return self.max


Distribution = Annotated[
    Constant | Uniform | Lognormal | Quantiles | Choice | Mixture | Preset,
    Field(discriminator="dist"),
]


class Part(Strict):
    """One component of a mixture."""

    weight: float = Field(gt=0)
    of: Distribution


Mixture.model_rebuild()


def pick(weights: tuple[float, ...] | list[float], rng: Random) -> int:
    """An index, drawn in proportion to the weights."""
    edges = list(accumulate(weights))
    return min(bisect_right(edges, rng.random() * edges[-1]), len(edges) - 1)
