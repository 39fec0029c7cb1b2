"""A finished fit as a step-cost file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentload.capacity.cost.fit import Prior, fit_form, prior_around
from agentload.capacity.cost.form import FORMS, NAMES, Array, Observations, parameters_of
from agentload.capacity.cost.posterior import Belief, believe, condition_number, step_share
from agentload.sim.profiles.coefficients import (
    Coefficient,
    CostFile,
    FrontendCoefficients,
    InForce,
    Provenance,
    StepCoefficients,
)

FRONTEND_BASE_S, FRONTEND_PER_TOKEN_S, FRONTEND_FACTOR = 3e-3, 2e-6, 10.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything a fit found; `chi2` holds that of both forms."""

    step: Belief
    frontend: Belief | None
    chi2: Mapping[str, float]
    condition: float
    prior: Prior


def estimate(
    at: Observations, prior: Prior, frontend: Observations | None, *, draws: int = 120
) -> Estimate:
    """Fit both forms, take the one with the lower chi2, and say how sure it is.

    A tie goes to the linear form, which has a coefficient less.
    """
    fits = {form: fit_form(at, prior, form) for form in FORMS}
    roofed = fits["roof"].chi2 < 0.98 * fits["linear"].chi2
    best = fits["roof" if roofed else "linear"]
    step = believe(at, prior, best, draws=draws)
    return Estimate(
        step=step,
        frontend=None if frontend is None else frontend_belief(frontend, draws),
        chi2={name: fit.chi2 for name, fit in fits.items()},
        condition=condition_number(at, best),
        prior=prior,
    )


def delays(
    tokens: Sequence[float], seconds: Sequence[float], sd_s: Sequence[float]
) -> Observations:
    """What the API server took for prompts of so many tokens, as observations to fit."""
    count = len(tokens)
    nothing = np.zeros(count)
    return Observations(
        steps=np.ones(count),
        prefill=np.asarray(tokens, float),
        decodes=nothing,
        context=nothing,
        attention=nothing,
        seconds=np.maximum(np.asarray(seconds, float), 1e-5),
        sd_s=np.asarray(sd_s, float),
        group=np.arange(count),
    )


def frontend_belief(at: Observations, draws: int) -> Belief:
    """base_s in the place of c0, per_token_s in that of c1."""
    values = {"c0": FRONTEND_BASE_S, "c1": FRONTEND_PER_TOKEN_S}
    prior = prior_around(values, FRONTEND_FACTOR, "any API server")
    return believe(at, prior, fit_form(at, prior, "linear"), draws=draws)


def cost_file(
    found: Estimate,
    *,
    measured: Provenance,
    subject: Mapping[str, str | int | float],
    source: str,
    depth_tokens: int,
    in_force: InForce,
    version_profile: str | None,
    step_discrepancy: float | None = None,
    ttft_discrepancy: float = 0.05,
) -> CostFile:
    """The file that simulator and planner read."""
    belief = found.step
    base, per_token, frontend_draws = _frontend_parts(found.frontend, belief, measured)
    count = parameters_of(belief.fit.form)
    padded = np.zeros((len(belief.draws), 6))
    padded[:, :count] = belief.draws
    return CostFile(
        form=belief.fit.form,
        step=StepCoefficients(**_step_parts(belief, measured)),
        frontend=FrontendCoefficients(base_s=base, per_token_s=per_token),
        subject=dict(subject),
        source=source,
        correlation=belief.correlation(),
        draws=np.hstack([padded, frontend_draws]).tolist(),
        step_discrepancy=round(min(0.99, max(belief.discrepancy, step_discrepancy or 0.0)), 4),
        ttft_discrepancy=round(ttft_discrepancy, 4),
        in_force=in_force,
        version_profile=version_profile,
        depth_tokens=depth_tokens,
        step_share=step_share(belief.fit, depth_tokens),
    )


def _step_parts(belief: Belief, measured: Provenance) -> dict[str, Coefficient]:
    low, high = belief.interval()
    return {
        name: _coefficient(value, low[i], high[i], belief.provenance(name, measured))
        for i, (name, value) in enumerate(zip(NAMES, belief.fit.theta, strict=False))
    }


def _coefficient(value: float, low: float, high: float, provenance: Provenance) -> Coefficient:
    return Coefficient(value=float(value), low=float(low), high=float(high), provenance=provenance)


def _frontend_parts(
    belief: Belief | None, step: Belief, measured: Provenance
) -> tuple[Coefficient, Coefficient, Array]:
    """(base_s, per_token_s, draws with a column for each)."""
    if belief is None:
        prior = prior_around(
            {"c0": FRONTEND_BASE_S, "c1": FRONTEND_PER_TOKEN_S}, FRONTEND_FACTOR, ""
        )
        median, sigma = prior.median[:2], prior.sigma[:2]
        rng = np.random.default_rng(0)
        drawn = median * np.exp(sigma * rng.standard_normal((len(step.draws), 2)))
        ends = (median / FRONTEND_FACTOR, median * FRONTEND_FACTOR)
        base, per_token = (
            _coefficient(median[i], ends[0][i], ends[1][i], "prior only") for i in range(2)
        )
        return base, per_token, drawn
    low, high = belief.interval()
    base, per_token = (
        _coefficient(belief.fit.theta[i], low[i], high[i], belief.provenance(NAMES[i], measured))
        for i in range(2)
    )
    return base, per_token, belief.draws[:, :2]
