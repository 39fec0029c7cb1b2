"""Duration of one engine step as a function of its batch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepCost:
    """Step time in seconds.

    linear: `t = c0 + c1*P + c2*D + c3*K + c4*A`
    roof:   `t = c5 + max(c0, c1*(P + D)) + c2*D + c3*K + c4*A`

    P: prefill tokens of the step. D: decoding sequences (a one-token chunk counts as one).
    K: sum of the decoding sequences' contexts in tokens. A: sum over prefill chunks of
    `chunk * (start + chunk/2)`, in tokens squared.

    c0 s per step (weight read, launch) | c1 s per token (matrix multiplications) | c2 s per
    sequence (sampling, bookkeeping) | c3 s per context token (KV read) | c4 s per token squared
    (attention arithmetic) | c5 s per step, roof only: the part that never overlaps.
    """

    c0: float
    c1: float
    c2: float
    c3: float
    c4: float
    c5: float = 0.0
    form: Literal["linear", "roof"] = "linear"

    def __post_init__(self) -> None:
        coefficients = (self.c0, self.c1, self.c2, self.c3, self.c4, self.c5)
        if any(not 0 <= c < float("inf") for c in coefficients):
            raise ValueError(f"step cost coefficients must be finite and >= 0, got {coefficients}")
        if self.c0 + self.c5 <= 0:
            raise ValueError("a step must take time: c0 + c5 must be > 0")
        if self.form not in ("linear", "roof"):
            raise ValueError(f"form={self.form!r} must be 'linear' or 'roof'")

    def step_s(self, prefill: int, decodes: int, context: int, attention: float) -> float:
        """Seconds for one step with the given P, D, K and A."""
        rest = self.c2 * decodes + self.c3 * context + self.c4 * attention
        if self.form == "linear":
            return self.c0 + self.c1 * prefill + rest
        return self.c5 + max(self.c0, self.c1 * (prefill + decodes)) + rest

    def growth_s(self, decodes: int) -> float:
        """Seconds by which each step of a decode-only stretch exceeds the one before."""
        return self.c3 * decodes
