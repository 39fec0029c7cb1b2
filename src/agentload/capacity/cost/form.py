"""The two forms of the step cost, evaluated on many observations at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentload.sim.core import StepCost

Form = Literal["linear", "roof"]
FORMS: tuple[Form, ...] = ("linear", "roof")
NAMES = ("c0", "c1", "c2", "c3", "c4", "c5")
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Observations:
    """Stretches of steps with their duration; all arrays have one entry a stretch.

    `steps`, `prefill`, `decodes`, `context`, `attention` are sums of n, P, D, K and A over the
    steps of a stretch, which are alike. `seconds` is how long it took, `sd_s` the standard
    deviation expected of that. `group` numbers the probe or the request it came from: what one
    group shares is not independent evidence.
    """

    steps: Array
    prefill: Array
    decodes: Array
    context: Array
    attention: Array
    seconds: Array
    sd_s: Array
    group: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def chosen(self, which: Array) -> Observations:
        """Those that an index or a mask picks."""
        columns = (getattr(self, name)[which] for name in self.__slots__)
        return Observations(*columns)

    def measured(self, seconds: Array, sd_s: Array) -> Observations:
        """The same stretches with other durations."""
        return Observations(
            self.steps, self.prefill, self.decodes, self.context, self.attention,
            seconds, sd_s, self.group,
        )  # fmt: skip


def joined(parts: Sequence[Observations]) -> Observations:
    """All of them; groups of different parts stay apart."""
    columns: list[list[Array]] = [[] for _ in Observations.__slots__]
    shift = 0
    for part in parts:
        for column, name in zip(columns, Observations.__slots__, strict=True):
            column.append(part.group + shift if name == "group" else getattr(part, name))
        shift += int(part.group.max()) + 1 if len(part) else 0
    return Observations(*(np.concatenate(column) for column in columns))


def parameters_of(form: Form) -> int:
    """c0..c4, and c5 in the roofline form."""
    return 6 if form == "roof" else 5


def seconds_of(theta: Array, at: Observations, form: Form) -> Array:
    """Predicted seconds of each stretch; `theta` holds c0..c4(, c5)."""
    total: Array = terms_of(theta, at, form).sum(axis=1)
    return total


def terms_of(theta: Array, at: Observations, form: Form) -> Array:
    """What each coefficient adds, one column each; also theta * d(seconds)/d(theta)."""
    tokens = at.prefill + at.decodes if form == "roof" else at.prefill
    columns = [
        theta[0] * at.steps,
        theta[1] * tokens,
        theta[2] * at.decodes,
        theta[3] * at.context,
        theta[4] * at.attention,
    ]
    if form == "roof":
        bound = columns[0] >= columns[1]  # by memory: the weights are read longer than computed
        columns[0] = np.where(bound, columns[0], 0.0)
        columns[1] = np.where(bound, 0.0, columns[1])
        columns.append(theta[5] * at.steps)
    return np.stack(columns, axis=1)


def cost_of(theta: Array, form: Form) -> StepCost:
    """The scheduler model's step cost."""
    c0, c1, c2, c3, c4 = (float(value) for value in theta[:5])
    c5 = float(theta[5]) if form == "roof" else 0.0
    return StepCost(c0, c1, c2, c3, c4, c5, form=form)
