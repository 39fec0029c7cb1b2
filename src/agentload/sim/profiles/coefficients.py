"""The step-cost file that server, fit and plan share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentload.atomic_file import replace_text
from agentload.sim.core import Frontend, StepCost


class CoefficientFileError(ValueError):
    """A step-cost file that cannot be used; the text names the file and every faulty key."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Provenance = Literal["data sheet", "prior only", "fitted", "calibrated", "given"]


class Coefficient(_Strict):
    """A value with its interval; `low` and `high` are absent where none is known."""

    value: Annotated[float, Field(ge=0)]
    low: Annotated[float, Field(ge=0)] | None = None
    high: Annotated[float, Field(ge=0)] | None = None
    provenance: Provenance

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value} is outside its interval {low}..{high}")
        return self


class StepCoefficients(_Strict):
    """c0..c5 of `StepCost`, in seconds per step, token, sequence, context token, token squared."""

    c0: Coefficient
    c1: Coefficient
    c2: Coefficient
    c3: Coefficient
    c4: Coefficient
    c5: Coefficient = Coefficient(value=0.0, provenance="given")


class FrontendCoefficients(_Strict):
    """The API server: seconds per request, seconds per prompt token."""

    base_s: Coefficient
    per_token_s: Coefficient


class InForce(_Strict):
    """The settings a server was found to run with; None where nothing told."""

    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    kv_blocks: Annotated[int, Field(ge=2)] | None = None  # vLLM's num_gpu_blocks, null block too
    block_size: Annotated[int, Field(ge=1)] | None = None
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    async_scheduling: bool | None = None


NonNegative = Annotated[float, Field(ge=0)]
Draw = Annotated[list[NonNegative], Field(min_length=8, max_length=8)]
DRAWN = ("c0", "c1", "c2", "c3", "c4", "c5", "base_s", "per_token_s")  # the columns of a draw

NOT_MODELLED = (
    "speculative decoding",
    "data and expert parallel engines in lockstep",
    "KV offload and transfer",
    "hybrid models (sliding window, state space layers)",
    "LoRA",
    "CUDA-graph padding of decode batches",
    "other tenants of the machine",
)


class CostFile(_Strict):
    """Everything a step-cost file says.

    `draws` are joint samples of the belief, one of `DRAWN` each, all in the units of the
    coefficients; none: only the intervals are known. They leave out what the cost form itself gets
    wrong: `step_discrepancy` and `ttft_discrepancy` are the relative standard deviations that a
    prediction of step times and of TTFT has to add.
    """

    schema_id: Literal["agentload.step-cost/1"] = Field(
        default="agentload.step-cost/1", alias="schema"
    )
    form: Literal["linear", "roof"]
    interval_share: Annotated[float, Field(gt=0, lt=1)] = 0.9
    step: StepCoefficients
    frontend: FrontendCoefficients
    subject: dict[str, str | int | float]  # gpu, model, tensor_parallel, vllm_version as known
    source: str
    correlation: dict[str, float] = {}  # "c0 c2": -0.8
    draws: Annotated[list[Draw], Field(max_length=400)] = []
    step_discrepancy: Annotated[float, Field(ge=0, lt=1)] = 0.03
    ttft_discrepancy: Annotated[float, Field(ge=0, lt=1)] = 0.05
    in_force: InForce = InForce()
    version_profile: str | None = None
    depth_tokens: Annotated[int, Field(ge=1)] | None = None  # the deepest context measured
    step_share: dict[str, float] = {}  # "c0": 0.4, of a step at that depth
    not_modelled: list[str] = list(NOT_MODELLED)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if 0 < len(self.draws) < 60:
            raise ValueError(f"draws: {len(self.draws)} of them; 0 or 60 to 400 are allowed")
        for number, draw in enumerate(self.draws):
            if draw[0] + draw[5] <= 0:
                raise ValueError(f"draws.{number}: a step must take time: c0 + c5 must be > 0")
        return self

    @property
    def not_measured(self) -> tuple[str, ...]:
        """Names of coefficients that no measurement has narrowed, as in `DRAWN`."""
        prior = ("data sheet", "prior only")
        return tuple(name for name in DRAWN if self.coefficient(name).provenance in prior)

    def coefficient(self, name: str) -> Coefficient:
        """The coefficient of this name in `DRAWN`."""
        part = self.step if name in StepCoefficients.model_fields else self.frontend
        found: Coefficient = getattr(part, name)
        return found

    def drawn(self, number: int) -> tuple[StepCost, Frontend]:
        """The step cost and a fresh tokenizer queue of one joint sample (0 <= number < draws)."""
        c0, c1, c2, c3, c4, c5, base_s, per_token_s = self.draws[number]
        return StepCost(c0, c1, c2, c3, c4, c5, form=self.form), Frontend(base_s, per_token_s)

    def step_cost(self) -> StepCost:
        """The values, without their intervals."""
        step = self.step
        return StepCost(
            step.c0.value,
            step.c1.value,
            step.c2.value,
            step.c3.value,
            step.c4.value,
            step.c5.value,
            form=self.form,
        )

    def make_frontend(self) -> Frontend:
        """A tokenizer queue with these coefficients."""
        return Frontend(self.frontend.base_s.value, self.frontend.per_token_s.value)

    def write(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        text = json.dumps(self.model_dump(by_alias=True, exclude_none=True), indent=2) + "\n"
        replace_text(path, text)


def read_cost_file(path: Path) -> CostFile:
    """Read and check a step-cost file. Raises CoefficientFileError."""
    try:
        return CostFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CoefficientFileError(f"{path}: cannot read: {error.strerror}") from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'file'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise CoefficientFileError(f"{path}: {faults}") from error
