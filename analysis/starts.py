"""Session starts of an open population: the plan beside what was achieved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.distribution import Distribution, distribution, ratio
from analysis.measured import Measured
from analysis.metrics import Arm

KEPT_UP = 0.95  # of the planned starts; below, the load was not the planned one
ONE_SHOT = r"x\d+-\d+"  # sessions of one prompt that interfere: they have a clock of their own


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts of the measured window, and latencies of all its turns with and without the lateness.

    `planned` were due in it, those included that found no free user before the end; None where
    the run ended without its counts. `achieved` were sent in it. `lateness_s` is of the achieved.
    Effective latencies begin when the turn was due; both kinds are of the same counted turns.
    """

    planned: int | None
    achieved: int
    planned_per_s: float | None
    achieved_per_s: float | None
    lateness_s: Distribution
    ttft_s: Distribution
    effective_ttft_s: Distribution
    e2e_s: Distribution
    effective_e2e_s: Distribution

    @property
    def overloaded(self) -> bool | None:
        """Fewer starts than `KEPT_UP` of the plan; None where the plan is not known."""
        return None if self.planned is None else self.achieved < KEPT_UP * self.planned


def starts(arm: Arm) -> Starts | None:
    """Over all runs of the arm; None unless sessions arrive by themselves in every one."""
    if not all(_is_open(run) for run in arm.runs):
        return None
    begun = [_first_turns(run) for run in arm.runs]
    achieved = pd.concat([turns[turns["measured"].to_numpy()] for turns in begun])
    due = [_due(run, turns) for run, turns in zip(arm.runs, begun, strict=True)]
    known = [count for count in due if count is not None]
    planned = sum(known) if len(known) == len(due) else None
    turns = pd.concat([run.turns[run.turns["counted"].to_numpy()] for run in arm.runs])
    effective_e2e = turns["end_s"].to_numpy() - turns["intended_start_s"].to_numpy()
    has_e2e = turns["e2e_s"].notna().to_numpy()
    return Starts(
        planned=planned,
        achieved=len(achieved),
        planned_per_s=None if planned is None else ratio(planned, arm.seconds),
        achieved_per_s=ratio(len(achieved), arm.seconds),
        lateness_s=distribution(achieved["lag_s"].to_numpy()),
        ttft_s=distribution(turns["ttft_s"].to_numpy()),
        effective_ttft_s=distribution(turns["effective_ttft_s"].to_numpy()),
        e2e_s=distribution(turns["e2e_s"].to_numpy()),
        effective_e2e_s=distribution(np.where(has_e2e, effective_e2e, np.nan)),
    )


def _is_open(run: Measured) -> bool:
    arrivals = run.run.manifest.scenario.get("arrivals")
    return isinstance(arrivals, dict) and arrivals.get("population") == "open"


def _first_turns(run: Measured) -> pd.DataFrame:
    """The first attempt of each session's first turn, sub-agents and interfering prompts aside."""
    turns = run.turns
    own = turns["parent_session_id"].isna().to_numpy()
    alone = turns["session_id"].astype(object).astype(str).str.fullmatch(ONE_SHOT).to_numpy(bool)
    first = (turns["turn_index"] == 0).to_numpy() & (turns["attempt"] == 1).to_numpy()
    return turns[own & ~alone & first]


def _due(run: Measured, first_turns: pd.DataFrame) -> int | None:
    """Starts due in the window: recorded ones, and those dropped at the end of the run.

    Starts are taken in order: where a later one than the window's end was sent, those that were
    dropped were due later still.
    """
    dropped = run.run.manifest.counts.get("dropped")
    if isinstance(dropped, bool) or not isinstance(dropped, int) or dropped < 0:
        return None
    due_s = first_turns["intended_start_s"].to_numpy()
    inside = (due_s >= run.window.from_s) & (due_s <= run.window.to_s)
    after = bool((due_s > run.window.to_s).any())
    return int(inside.sum()) + (0 if after else dropped)
