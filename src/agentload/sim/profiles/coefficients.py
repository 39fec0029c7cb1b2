"""The step-cost file that server, fit and plan share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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


class CostFile(_Strict):
    """Everything a step-cost file says."""

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
        draft = path.with_name(path.name + ".part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)


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
