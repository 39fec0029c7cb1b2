"""What to believe about a deployment before anything was measured."""

from __future__ import annotations

import math
import random

from agentload.sim.profiles.coefficients import (
    DRAWN,
    Coefficient,
    CostFile,
    FrontendCoefficients,
    StepCoefficients,
)
from agentload.sim.profiles.hardware import Deployment, assumption, gpu, model
from agentload.sim.profiles.versions import VersionProfile, version_profile

PRIOR_DRAWS = 200
_Z90 = 1.6448536269514722  # standard deviations from the middle to the ends of a 90 % interval


def data_sheet_costs(deployment: Deployment, version: VersionProfile) -> CostFile:
    """Data-sheet values with the interval of the assumptions they rest on."""
    factor = assumption("prior_factor")

    def prior(value: float) -> Coefficient:
        return Coefficient(
            value=value, low=value / factor, high=value * factor, provenance="data sheet"
        )

    cost = deployment.step_cost()
    return CostFile(
        form="linear",
        step=StepCoefficients(
            c0=prior(cost.c0),
            c1=prior(cost.c1),
            c2=prior(cost.c2),
            c3=prior(cost.c3),
            c4=prior(cost.c4),
        ),
        frontend=FrontendCoefficients(
            base_s=prior(assumption("frontend_base_s")),
            per_token_s=prior(assumption("frontend_per_token_s")),
        ),
        subject={
            "gpu": deployment.gpu.name,
            "model": deployment.model.name,
            "tensor_parallel": deployment.tensor_parallel,
            "weights": deployment.weight_format,
            "vllm_version": version.name,
        },
        source=f"{deployment.gpu.source}; {deployment.model.source}; assumed efficiencies",
    )


def prior(
    gpu_name: str,
    model_name: str,
    *,
    tensor_parallel: int = 1,
    weights: str = "",
    vllm_version: str = "0.32-0.33",
    draws: int = PRIOR_DRAWS,
    seed: int = 0,
) -> CostFile:
    """The data sheet as a belief: log-normal around each value, all marked "prior only".

    The 90 % interval is the value divided and multiplied by `prior_factor` (2); coefficients are
    drawn independently of each other. Raises ProfileError naming the known GPUs and models.
    """
    deployment = Deployment(gpu(gpu_name), model(model_name), tensor_parallel, weights)
    version = version_profile(vllm_version)
    sheet = data_sheet_costs(deployment, version)
    marked = {name: _marked(sheet.coefficient(name)) for name in DRAWN}
    sigma = math.log(assumption("prior_factor")) / _Z90
    rng = random.Random(seed)
    return sheet.model_copy(
        update={
            "step": StepCoefficients(**{name: marked[name] for name in DRAWN[:6]}),
            "frontend": FrontendCoefficients(**{name: marked[name] for name in DRAWN[6:]}),
            "draws": [
                [marked[name].value * rng.lognormvariate(0.0, sigma) for name in DRAWN]
                for _ in range(draws)
            ],
            "version_profile": version.name,
        }
    )


def _marked(sheet: Coefficient) -> Coefficient:
    provenance = "prior only" if sheet.provenance == "data sheet" else sheet.provenance
    return sheet.model_copy(update={"provenance": provenance})
