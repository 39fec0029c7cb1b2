"""What a diagnosis says about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

# `expected`: the scenario was made to show it; nothing has to be mended.
Severity = Literal["problem", "hint", "expected"]
Confidence = Literal["high", "medium", "low"]

SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One named cause. `evidence` holds the numbers, `advice` the next thing to try, `effect` what
    that should change, and by how much.

    `rows` are lines of `turns.csv` that show it best.
    """

    name: str
    title: str
    severity: Severity
    confidence: Confidence
    evidence: str
    advice: str
    effect: str
    arm: str = ""
    rows: tuple[int, ...] = ()


def rows_by(turns: pd.DataFrame, size: pd.Series | np.ndarray) -> tuple[int, ...]:
    """Lines of the turns with the largest `size`; turns without one are left out."""
    sizes = np.asarray(size, dtype=float)
    order = np.argsort(-np.where(np.isnan(sizes), -np.inf, sizes), kind="stable")
    order = order[~np.isnan(sizes[order])][:SHOWN_ROWS]
    return tuple(turns["file_row"].to_numpy()[order].astype(int).tolist())


def first_rows(turns: pd.DataFrame) -> tuple[int, ...]:
    return tuple(turns["file_row"].to_numpy()[:SHOWN_ROWS].astype(int).tolist())
