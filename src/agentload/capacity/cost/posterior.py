"""How sure a fit is: joint draws, intervals, correlations, what only the prior says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentload.capacity.cost.fit import Fit, Prior, fit_form
from agentload.capacity.cost.form import NAMES, Array, Observations, seconds_of, terms_of
from agentload.sim.profiles.coefficients import Provenance

NO_NARROWER = 0.8  # of the prior's width and above: the measurement has taught nothing
DEFAULT_DRAWS = 120
TYPICAL_SHARE, NORMAL_QUANTILE = 0.8, 1.2816  # of absolute values: quantile of a normal one
DISCREPANCY_LEAST = 0.01  # no form is truer than this of a real server


@dataclass(frozen=True, slots=True)
class Belief:
    """A fit with its uncertainty; `draws` has a row a sample, columns as `fit.theta`.

    `misfit` is by how much whole probes differ from the fitted form beyond what noise explains,
    each relative to what was expected of it.
    """

    fit: Fit
    draws: Array
    misfit: Array
    prior_only: tuple[str, ...]

    def interval(self, share: float = 0.9) -> tuple[Array, Array]:
        """Ends of the central interval of each coefficient."""
        low, high = np.quantile(self.draws, [(1 - share) / 2, (1 + share) / 2], axis=0)
        return np.minimum(low, self.fit.theta), np.maximum(high, self.fit.theta)

    def correlation(self) -> dict[str, float]:
        """Between the logarithms of the coefficients: "c0 c2": -0.8."""
        logs = np.log(self.draws)
        matrix = np.corrcoef(logs, rowvar=False)
        count = logs.shape[1]
        return {
            f"{NAMES[i]} {NAMES[j]}": round(float(matrix[i, j]), 3)
            for i in range(count)
            for j in range(i + 1, count)
        }

    def provenance(self, name: str, measured: Provenance) -> Provenance:
        """`measured`, or what marks a coefficient that no measurement has narrowed."""
        return "prior only" if name in self.prior_only else measured

    @property
    def discrepancy(self) -> float:
        """Relative model error that predictions of step times add to the draws.

        That of most probes: the few that a form fits worst are in the draws.
        """
        if not len(self.misfit):
            return DISCREPANCY_LEAST
        typical = float(np.quantile(self.misfit, TYPICAL_SHARE)) / NORMAL_QUANTILE
        return max(DISCREPANCY_LEAST, typical)


def believe(
    at: Observations, prior: Prior, fit: Fit, *, draws: int = DEFAULT_DRAWS, seed: int = 0
) -> Belief:
    """Sample the belief around a fit.

    Each draw fits durations that could have been seen as well (a wild cluster bootstrap): those
    fitted, with an error common to each probe as large as that probe's own, and with resampled
    residuals, widened by sqrt(chi2) where the form does not explain the data. Its prior's centre is
    drawn from the prior, so a direction that the data do not fix keeps the prior's width.
    """
    rng = np.random.default_rng(seed)
    expected = seconds_of(fit.theta, at, fit.form)
    labels, member = np.unique(at.group, return_inverse=True)
    misfit = group_misfit(at, expected)
    spread = at.sd_s * max(1.0, np.sqrt(fit.chi2))
    residual = np.clip((at.seconds - expected) / at.sd_s, -4, 4)
    residual = residual / max(1e-9, float(np.sqrt(np.mean(residual**2))))
    labels, member = np.unique(at.group, return_inverse=True)
    centre, sigma = prior.of(fit.form)
    found = []
    for _ in range(draws):
        common = (misfit * rng.standard_normal(len(labels)))[member]
        noise = spread * rng.choice(residual, len(at)) * rng.choice([-1.0, 1.0], len(at))
        seen = np.maximum(expected * (1 + common) + noise, 0.05 * expected)
        moved = prior.median.copy()
        moved[: len(centre)] = np.exp(centre + sigma * rng.standard_normal(len(centre)))
        again = fit_form(
            at.measured(seen, spread), Prior(moved, prior.sigma, prior.source), fit.form,
            start=np.log(fit.theta), robust=False,
        )  # fmt: skip
        found.append(again.theta)
    drawn = np.array(found)
    width = np.log(drawn).std(axis=0, ddof=1)
    unknown = tuple(NAMES[i] for i in range(len(width)) if width[i] > NO_NARROWER * sigma[i])
    return Belief(fit, drawn, misfit, unknown)


def group_misfit(at: Observations, expected: Array) -> Array:
    """Relative difference of each group from what was expected, less what noise explains."""
    _, member = np.unique(at.group, return_inverse=True)
    precision = (expected / at.sd_s) ** 2
    weight = np.bincount(member, precision)
    mean = np.bincount(member, precision * (at.seconds / expected - 1)) / weight
    size: Array = np.sqrt(np.maximum(0.0, np.minimum(mean**2, 0.25) - 1 / weight))
    return size


def condition_number(at: Observations, fit: Fit) -> float:
    """Of the weighted design with each column scaled to its coefficient; 1 is best."""
    scaled = terms_of(fit.theta, at, fit.form) / at.sd_s[:, None]
    return float(np.linalg.cond(scaled))


def step_share(fit: Fit, depth_tokens: int, chunk_tokens: int = 512, streams: int = 4) -> dict[
    str, float
]:  # fmt: skip
    """What each coefficient takes of a step at that depth.

    The step: one chunk of a prompt whose context is that deep, beside `streams` sequences that
    decode at the same depth.
    """
    one = np.ones(1)
    at = Observations(
        steps=one,
        prefill=one * chunk_tokens,
        decodes=one * streams,
        context=one * streams * depth_tokens,
        attention=one * chunk_tokens * depth_tokens,
        seconds=one,
        sd_s=one,
        group=np.zeros(1, int),
    )
    terms = terms_of(fit.theta, at, fit.form)[0]
    return {
        name: round(float(term / terms.sum()), 4) for name, term in zip(NAMES, terms, strict=False)
    }
