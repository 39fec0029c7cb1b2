"""What a session, not a request, went through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.distribution import Distribution, distribution, mean_of, ratio

MIN_SESSIONS_PER_TURN = 5


@dataclass(frozen=True, slots=True)
class TurnNumber:
    """The n-th turn of the sessions that got that far; no TTFT when too few did."""

    turn_index: int
    sessions: int
    mean_ttft_s: float | None


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """`broken` sessions ended in a failed turn. `completed` is None without a planned number.

    `user_turn_s` is from a user turn's call to the end of the last turn that followed from it,
    where the next user turn shows that it was the last. `queue_s_per_hour` is time spent in the
    server's queue per hour of session time.
    """

    sessions: int
    completed: int | None
    broken: int
    deepest_turn: int
    by_turn: tuple[TurnNumber, ...]
    user_turn_s: Distribution
    queue_s_per_hour: float | None


def session_figures(
    turns: pd.DataFrame,
    planned_turns: int | None = None,
    min_sessions: int = MIN_SESSIONS_PER_TURN,
) -> SessionFigures:
    """Figures of the measured turns; a session is told by run and session id."""
    mine = turns[turns["measured"].to_numpy()].copy(deep=False)
    mine["session"] = mine["run"].astype(str) + "/" + mine["session_id"].astype(str)
    if mine.empty:
        return SessionFigures(0, None, 0, 0, (), Distribution(0), None)
    success = mine[(mine["status"] == "success").to_numpy()]
    last = mine.sort_values("call_start_s").groupby("session").last()
    depth = success.groupby("session")["turn_index"].nunique()
    completed = None if planned_turns is None else int((depth >= planned_turns).sum())
    return SessionFigures(
        sessions=int(mine["session"].nunique()),
        completed=completed,
        broken=int((last["status"] == "error").sum()),
        deepest_turn=int(mine["turn_index"].max()),
        by_turn=_by_turn(success, min_sessions),
        user_turn_s=distribution(_user_turn_seconds(mine)),
        queue_s_per_hour=_queue_per_hour(mine),
    )


def _by_turn(success: pd.DataFrame, min_sessions: int) -> tuple[TurnNumber, ...]:
    found = []
    for index, part in success.groupby("turn_index"):
        sessions = int(part["session"].nunique())
        mean = mean_of(part["ttft_s"].to_numpy()) if sessions >= min_sessions else None
        found.append(TurnNumber(int(str(index).split(".")[0]), sessions, mean))
    return tuple(found)


def _user_turn_seconds(turns: pd.DataFrame) -> np.ndarray:
    ordered = turns.sort_values(["session", "turn_index"])
    is_user = (ordered["turn_class"] == "user").to_numpy()
    number = pd.Series(is_user).groupby(ordered["session"].to_numpy()).cumsum()
    keys = [ordered["session"].to_numpy(), number.to_numpy()]
    spans = ordered.groupby(keys).agg({"call_start_s": "min", "end_s": "max"})
    numbers = spans.index.get_level_values(1).to_numpy()
    last = spans.groupby(level=0)["end_s"].transform("size").to_numpy()
    position = spans.groupby(level=0).cumcount().to_numpy()
    whole = (numbers > 0) & (position < last - 1)
    seconds: np.ndarray = (spans["end_s"] - spans["call_start_s"]).to_numpy()[whole]
    return seconds


def _queue_per_hour(turns: pd.DataFrame) -> float | None:
    if turns["server_queue_s"].isna().all():
        return None
    spans = turns.groupby("session").agg({"call_start_s": "min", "end_s": "max"})
    hours = float((spans["end_s"] - spans["call_start_s"]).sum()) / 3600
    return ratio(float(turns["server_queue_s"].sum()), hours)
