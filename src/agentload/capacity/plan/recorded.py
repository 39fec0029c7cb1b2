"""Sessions of a recorded run as token counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from agentload.capacity.plan.demand import Demand, DemandError, PlannedSession, PlannedTurn
from analysis.load import Run

_NUMBERS = (
    "call_start_s", "end_s", "prompt_tokens", "planned_prefix_tokens", "output_tokens",
)  # fmt: skip
_SAME_FRONT = 0.02  # estimates of one shared front differ by so much of it at most


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A session as it was sent. `start_s` is its first call on the run's clock.

    `indices` are the turn indices of its turns: those that failed or were tried again are left
    out, and what waits for them waits longer.
    """

    session_id: str
    start_s: float
    indices: tuple[int, ...]
    planned: PlannedSession


def recorded_sessions(run: Run) -> list[RecordedSession]:
    """All sessions with at least one answered turn, warm-up included, in order of their start.

    Needs prompt and output tokens of every turn. Raises DemandError when no turn has them.
    """
    turns = run.turns
    known = turns[
        (turns["status"] == "success").to_numpy()
        & turns["prompt_tokens"].notna().to_numpy()
        & turns["output_tokens"].notna().to_numpy()
        & turns["end_s"].notna().to_numpy()
    ].sort_values(["session_id", "call_start_s"], kind="stable")
    if known.empty:
        raise DemandError(
            f"{run.path}: no turn was answered and has both its prompt and its output tokens"
        )
    fronts = _fronts(known)
    sessions = [
        _session(str(name), rows, fronts)
        for name, rows in known.groupby("session_id", sort=False, observed=True)
    ]
    return sorted(sessions, key=lambda session: session.start_s)


def of_run(run: Run) -> Demand:
    """The sessions of a run as a demand; think times are what passed between its turns, in
    seconds of the workload: a run at k times real time has them multiplied by k."""
    pace = run.manifest.scenario.get("pace")
    factor = float(pace) if isinstance(pace, int | float) else 1.0
    sessions = tuple(
        PlannedSession(s.planned.group, s.planned.shared_tokens, _paced(s.planned.turns, factor))
        for s in recorded_sessions(run)
        if "." not in s.session_id and not s.session_id.startswith("x")
    )
    left_out = ("children and interfering prompts of the run",)
    return Demand(f"run {run.manifest.run_id}", sessions, left_out)


def _paced(turns: tuple[PlannedTurn, ...], factor: float) -> tuple[PlannedTurn, ...]:
    return tuple(
        PlannedTurn(
            t.turn_class, t.prompt_tokens, t.prefix_tokens, t.output_tokens, t.wait_s * factor
        )
        for t in turns
    )


def _fronts(turns: pd.DataFrame) -> list[int]:
    """Sizes of the fronts that first turns share with earlier sessions, largest first; of those
    that differ by an estimate's error only the smallest."""
    first = turns.drop_duplicates("session_id")
    sizes = sorted({int(v) for v in first["planned_prefix_tokens"].dropna() if v > 0})
    fronts: list[int] = []
    for size in sizes:
        if not fronts or size > fronts[-1] * (1 + _SAME_FRONT):
            fronts.append(size)
    return fronts[::-1]


def _session(name: str, rows: pd.DataFrame, fronts: list[int]) -> RecordedSession:
    turns: list[PlannedTurn] = []
    end_s = math.nan
    numbers = rows[list(_NUMBERS)].to_numpy(dtype=float).tolist()
    for turn_class, row in zip(rows["turn_class"].astype(str), numbers, strict=True):
        call_start_s, answered_s, prompt_tokens, prefix_tokens, output_tokens = row
        before = turns[-1].prompt_tokens if turns else 0
        shared = before if math.isnan(prefix_tokens) else int(prefix_tokens)
        turns.append(
            PlannedTurn(
                turn_class,
                int(prompt_tokens),
                _as_counted(shared, before),
                max(1, int(output_tokens)),
                0.0 if math.isnan(end_s) else max(0.0, call_start_s - end_s),
            )
        )
        end_s = answered_s
    front = _front(turns[0], fronts)
    indices = tuple(int(i) for i in rows["turn_index"].tolist())
    planned = PlannedSession(front, front, tuple(turns))
    return RecordedSession(name, float(numbers[0][0]), indices, planned)


def _as_counted(planned: int, before: int) -> int:
    """Planned tokens of a shared front, where the server counted the prompt before: a plan that is
    off by its estimate's error means that whole prompt."""
    return before if before and abs(planned - before) <= _SAME_FRONT * before else planned


def _front(first: PlannedTurn, fronts: list[int]) -> int:
    """The front of a session: what it shares, or for one that opens a run the largest there is."""
    shared = first.prefix_tokens
    fitting = [size for size in fronts if size < first.prompt_tokens]
    if shared:
        return next((size for size in fitting if size <= shared * (1 + _SAME_FRONT)), 0)
    return fitting[0] if fitting else 0
