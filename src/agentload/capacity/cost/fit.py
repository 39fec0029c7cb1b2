"""Step-cost coefficients from observed durations: the maximum a posteriori in log space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agentload.capacity.cost.form import (
    NAMES,
    Array,
    Form,
    Observations,
    parameters_of,
    seconds_of,
    terms_of,
)

Z90 = 1.6448536269514722  # standard deviations from the middle to the ends of a 90 % interval
ROUNDS = 60
STUDENT = 6.0  # degrees of freedom: a stall of the machine must not decide a coefficient


class FitError(ValueError):
    """There is nothing to fit, or nothing that identifies a coefficient."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Log-normal belief about c0..c5: median in their units, `sigma` of the logarithm."""

    median: Array
    sigma: Array
    source: str

    def of(self, form: Form) -> tuple[Array, Array]:
        """(logarithm of the median, sigma) of a form's coefficients."""
        count = parameters_of(form)
        return np.log(self.median[:count]), self.sigma[:count]


# Any machine: the 90 % interval is the value divided and multiplied by a hundred. Covers one core
# with a toy model as well as eight GPUs with a large one.
_ANY = {"c0": 1e-2, "c1": 3e-5, "c2": 3e-5, "c3": 1e-8, "c4": 1e-9, "c5": 1e-3}
_ANY_FACTOR = 100.0
_OVERLAP_FREE = 2e-3  # s a step outside the roof, as guess; no data sheet states it


def wide_prior() -> Prior:
    """What is believed of a server nobody said anything about."""
    median = np.array([_ANY[name] for name in NAMES])
    return Prior(median, np.full(6, math.log(_ANY_FACTOR) / Z90), "none given: a hundredfold range")


def prior_around(values: Mapping[str, float], factor: float, source: str) -> Prior:
    """A prior whose 90 % interval is each value divided and multiplied by `factor`."""
    medians = [values.get(name) or 0.0 for name in NAMES]
    medians[5] = medians[5] or _OVERLAP_FREE
    wide = wide_prior()
    known = np.array([value > 0 for value in medians])
    median = np.where(known, medians, wide.median)
    sigma = np.where(known, math.log(factor) / Z90, wide.sigma)
    return Prior(median, sigma, source)


@dataclass(frozen=True, slots=True)
class Fit:
    """One form fitted: `theta` are c0..c4(, c5); `chi2` per observation, 1 when noise explains all.

    `groups` is the number of probes or requests that were fitted.
    """

    form: Form
    theta: Array
    chi2: float
    groups: int


def fit_form(
    at: Observations, prior: Prior, form: Form, *, start: Array | None = None, robust: bool = True
) -> Fit:
    """Fit one form; `start` are logarithms to begin with, the prior's else."""
    if not len(at):
        raise FitError("no observation of a step")
    centre, sigma = prior.of(form)
    starts = [centre] if start is None else [start]
    if form == "roof" and start is None:
        linear = np.log(fit_form(at, prior, "linear", robust=robust).theta)
        starts.append(np.append(linear, centre[5]))
        shifted = linear.copy()
        shifted[0] += math.log(0.8)
        starts.append(np.append(shifted, linear[0] + math.log(0.2)))
    found = [_descend(at, centre, sigma, form, begin, robust) for begin in starts]
    logs, _ = min(found, key=lambda pair: pair[1])
    theta = np.exp(logs)
    z = (seconds_of(theta, at, form) - at.seconds) / at.sd_s
    return Fit(form, theta, float(np.mean(np.minimum(z * z, 100.0))), len(np.unique(at.group)))


def _weights(z: Array) -> Array:
    weight: Array = (STUDENT + 1) / (STUDENT + z * z)
    return weight


def _descend(
    at: Observations, centre: Array, sigma: Array, form: Form, start: Array, robust: bool
) -> tuple[Array, float]:
    """Levenberg-Marquardt on logarithms; (logarithms, objective)."""
    logs, damping = start.copy(), 1e-3
    value = _objective(logs, at, centre, sigma, form, robust)
    for _ in range(ROUNDS):
        step_taken = False
        gradient, curvature = _slopes(logs, at, centre, sigma, form, robust)
        while damping < 1e8 and not step_taken:
            lifted = curvature + damping * np.diag(np.diag(curvature))
            step = np.clip(-np.linalg.solve(lifted, gradient), -1.5, 1.5)
            tried = _objective(logs + step, at, centre, sigma, form, robust)
            if tried < value:
                step_taken = True
                damping = max(damping / 5, 1e-9)
            else:
                damping *= 4
        if not step_taken:
            break
        gain, value = value - tried, tried
        logs = logs + step
        if gain < 1e-7 * (1 + value):
            break
    return logs, value


def _objective(
    logs: Array, at: Observations, centre: Array, sigma: Array, form: Form, robust: bool
) -> float:
    z = (seconds_of(np.exp(logs), at, form) - at.seconds) / at.sd_s
    data = (STUDENT + 1) * np.log1p(z * z / STUDENT) if robust else z * z
    return float(data.sum() + (((logs - centre) / sigma) ** 2).sum())


def _slopes(
    logs: Array, at: Observations, centre: Array, sigma: Array, form: Form, robust: bool
) -> tuple[Array, Array]:
    """Half the gradient of the objective, and its Gauss-Newton curvature."""
    terms = terms_of(np.exp(logs), at, form) / at.sd_s[:, None]
    z = terms.sum(axis=1) - at.seconds / at.sd_s
    weight = _weights(z) if robust else np.ones_like(z)
    weighted = terms * weight[:, None]
    gradient = weighted.T @ z + (logs - centre) / sigma**2
    curvature = weighted.T @ terms + np.diag(1 / sigma**2)
    return gradient, curvature
