"""What a diagnosis says about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "hint"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One named cause. `evidence` holds the numbers, `advice` what to try and what to expect.

    `rows` are lines of `turns.csv` that show it best.
    """

    name: str
    title: str
    severity: Severity
    confidence: Confidence
    evidence: str
    advice: str
    arm: str = ""
    rows: tuple[int, ...] = ()
