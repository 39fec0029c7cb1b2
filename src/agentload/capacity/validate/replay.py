"""What the model says of a run against what was measured in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentload.capacity.plan.demand import core_turns
from agentload.capacity.plan.draws import CostDraw
from agentload.capacity.plan.recorded import RecordedSession, recorded_sessions
from agentload.sim.core import EngineConfig, Histogram, Offline, Replica, Turn, TurnResult
from agentload.turn_metrics import min_samples
from analysis.gap_histogram import GapHistogram
from analysis.measured import Measured

# name of the figure -> largest error that passes: a share of what was measured, for the hit rate
# a difference (BLIS publishes 29 % for P99 TTFT)
PASS_MARKS = {
    "ttft_p50": 0.10,
    "ttft_p99": 0.20,
    "itl": 0.05,
    "throughput": 0.03,
    "hit_rate": 0.01,
}
STATISTICS = {"mean": None, "P50": 0.5, "P90": 0.9, "P99": 0.99}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: predicted and measured, None with too few turns; `mark` None: no pass mark."""

    figure: str
    turns: int
    predicted: float | None
    measured: float | None
    mark: float | None
    is_share: bool = False  # the error is a difference, not a ratio

    @property
    def error(self) -> float | None:
        """Relative to the measured value; for a share the difference."""
        if self.predicted is None or self.measured is None:
            return None
        if self.is_share:
            return self.predicted - self.measured
        return self.predicted / self.measured - 1 if self.measured else None

    @property
    def passed(self) -> bool | None:
        """None where there is no mark or no error."""
        error = self.error
        return None if self.mark is None or error is None else abs(error) <= self.mark


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows; `ttft_mape` is the mean of the relative TTFT errors of single turns."""

    rows: tuple[Row, ...]
    turns: int
    ttft_mape: float | None
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """No mark was missed, and some were there to meet."""
        known = [row.passed for row in self.rows if row.passed is not None]
        return bool(known) and all(known)


def validate(measured: Measured, config: EngineConfig, draw: CostDraw) -> Validation:
    """Replay the recorded sessions on the model and compare turn by turn.

    Sessions start when they did; a turn follows its predecessor's predicted end after the recorded
    think time, so a wrong prediction moves the load as it would in reality. Only turns that count
    in the analysis are compared. Raises DemandError when the run lacks token counts.
    """
    sessions = recorded_sessions(measured.run)
    replicas = _replica_names(measured.turns)
    world = Replay(sessions, config, draw, measured.turns, replicas)
    predicted = world.run(measured.window.from_s, measured.window.to_s)
    counted = measured.turns[measured.turns["counted"].to_numpy()]
    joined = counted.merge(predicted, on=["session_id", "turn_index"], suffixes=("", "_model"))
    rows = [
        *_latencies(joined, "cold", joined["turn_class"] == "cold"),
        *_latencies(joined, "T2+", joined["turn_class"] != "cold"),
        *_gaps(measured, world.itl),
        *_totals(joined),
    ]
    errors = (joined["ttft_s_model"] / joined["ttft_s"] - 1).abs()
    return Validation(
        tuple(rows),
        len(joined),
        float(errors.mean()) if len(errors) else None,
        tuple(_notes(joined, counted, replicas, world.refused)),
    )


class Replay:
    """Recorded sessions on model engines; `itl` has the gaps between tokens inside the window."""

    def __init__(
        self,
        sessions: Sequence[RecordedSession],
        config: EngineConfig,
        draw: CostDraw,
        turns: pd.DataFrame,
        replicas: Sequence[str],
    ) -> None:
        self.itl = Histogram()
        self.refused = 0
        self._sessions = list(sessions)
        self._config = config
        count = max(1, len(replicas))
        self._engines = [Replica(config, draw.cost, draw.frontend()) for _ in range(count)]
        self._home = _homes(turns, replicas)
        self._offline = Offline(self._engines, self._route)

    def _route(self, session: int, _turn: Turn, _replicas: Sequence[Replica]) -> int:
        return self._home.get(self._sessions[session].session_id, 0)

    def run(self, from_s: float, to_s: float) -> pd.DataFrame:
        """Predicted times of every turn, by session_id and turn_index."""
        for number, session in enumerate(self._sessions):
            self._offline.add_session(self._turns(number, session), max(0.0, session.start_s))
        self._offline.run(from_s)
        for engine in self._engines:
            engine.engine.itl = Histogram()
        self._offline.run(to_s)
        for engine in self._engines:
            self.itl.merge(engine.engine.itl)
        return pd.DataFrame([self._row(result) for result in self._offline.run()])

    def _turns(self, number: int, session: RecordedSession) -> Iterator[Turn]:
        for planned, turn in core_turns(session.planned, number, self._config.block_size):
            if planned.prompt_tokens >= self._config.max_model_len:
                self.refused += 1
                return
            yield turn

    def _row(self, result: TurnResult) -> dict[str, Any]:
        session, request = self._sessions[result.session], result.request
        return {
            "session_id": session.session_id,
            "turn_index": session.indices[result.turn_index],
            "ttft_s": result.ttft_s,
            "e2e_s": result.e2e_s,
            "queue_s": (request.scheduled_s or 0.0) - result.engine_s,
            "sent_s": result.sent_s,
            "cached_tokens": request.cached_tokens or 0,
        }


def _replica_names(turns: pd.DataFrame) -> list[str]:
    return sorted({str(name) for name in turns["replica"].dropna() if str(name)})


def _homes(turns: pd.DataFrame, replicas: Sequence[str]) -> dict[str, int]:
    """The replica that answered most of a session's turns; empty where nobody told."""
    number = {name: at for at, name in enumerate(replicas)}
    told = turns[turns["replica"].notna().to_numpy()]
    return {
        str(session): number[str(names.mode().iloc[0])]
        for session, names in told.groupby("session_id", observed=True)["replica"]
    }


def _latencies(joined: pd.DataFrame, name: str, mask: pd.Series) -> Iterator[Row]:
    part = joined[mask.to_numpy()]
    for column in ("ttft_s", "e2e_s"):
        model, real = part[f"{column}_model"].to_numpy(), part[column].to_numpy(dtype=float)
        for statistic, share in STATISTICS.items():
            mark = PASS_MARKS.get(f"{column[:-2]}_{statistic.lower()}")
            yield Row(
                f"{name} {column} {statistic}",
                len(part),
                _statistic(model, share),
                _statistic(real, share),
                mark,
            )
    queue = part["server_queue_s"].to_numpy(dtype=float)
    known = ~np.isnan(queue)
    yield Row(
        f"{name} queue_s mean",
        int(known.sum()),
        _statistic(part["queue_s"].to_numpy()[known], None),
        _statistic(queue[known], None),
        None,
    )


def _statistic(values: np.ndarray, share: float | None) -> float | None:
    known = values[~np.isnan(values)]
    if not len(known) or (share is not None and len(known) < min_samples(share)):
        return None
    return float(known.mean() if share is None else np.quantile(known, share))


def _gaps(measured: Measured, model: Histogram) -> Iterator[Row]:
    """Gaps of all turns in the window; the measured ones are between chunks of counted turns."""
    gaps = GapHistogram.sum_of(measured.gaps.raw.values())
    for statistic, share in STATISTICS.items():
        if share is None:
            predicted = model.total_s / model.count if model.count else None
            real = gaps.mean()
        else:
            enough = gaps.count >= min_samples(share) and model.count > 0
            predicted = model.quantile(share) if enough else None
            real = gaps.percentile(share) if enough else None
        mark = PASS_MARKS["itl"] if statistic in ("mean", "P50") else None
        yield Row(f"itl_s {statistic}", gaps.count, predicted, real, mark)


def _totals(joined: pd.DataFrame) -> Iterator[Row]:
    """Output tokens a second over the same turns, and the share of prompt tokens cached."""
    tokens = float(joined["output_tokens"].sum())
    real_s = _span(joined["call_start_s"], joined["end_s"])
    model_s = _span(joined["sent_s"], joined["sent_s"] + joined["e2e_s_model"])
    yield Row(
        "output tokens/s",
        len(joined),
        tokens / model_s if model_s else None,
        tokens / real_s if real_s else None,
        PASS_MARKS["throughput"],
    )
    known = joined[joined["cached_tokens"].notna().to_numpy()]
    prompt = float(known["prompt_tokens"].sum())
    yield Row(
        "hit rate",
        len(known),
        float(known["cached_tokens_model"].sum()) / prompt if prompt else None,
        float(known["cached_tokens"].sum()) / prompt if prompt else None,
        PASS_MARKS["hit_rate"],
        is_share=True,
    )


def _span(starts: pd.Series, ends: pd.Series) -> float | None:
    span = float(ends.max() - starts.min()) if len(starts) else 0.0
    return span if span > 0 else None


def _notes(
    joined: pd.DataFrame, counted: pd.DataFrame, replicas: Sequence[str], refused: int
) -> Iterator[str]:
    missing = len(counted) - len(joined)
    if missing:
        yield f"{missing} counted turns have no token counts and are not compared"
    if refused:
        yield f"{refused} sessions reached max_model_len of the model and end there"
    if not replicas:
        yield "no turn says which replica answered it: one replica is assumed"
