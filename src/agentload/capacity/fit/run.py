"""Step cost from a finished run: simulate it, regress what was seen on what ran, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentload.capacity.cost.fit import FitError, Prior, fit_form
from agentload.capacity.cost.form import Array, Observations, cost_of
from agentload.sim.core import EngineConfig, Frontend, Replica, Request, StepCost, Turn
from agentload.sim.core.step import Span

ROUNDS = 25
DAMPING = 0.6  # a change of the coefficients changes the schedule that they were fitted on
SETTLED = 2e-3  # change of a coefficient's logarithm
WINDOW_NOISE, WINDOW_FLOOR_S = 0.05, 0.005  # of an observed window
LEAST_TURNS = 12


@dataclass(frozen=True, slots=True)
class Seen:
    """One answered turn; seconds on the run's clock, None where nothing told.

    `prefill_s` is from the first scheduling to the first token by the server's own clock; without
    it the wait in the queue is part of what is fitted.
    """

    replica: str
    sent_s: float
    turn: Turn
    prompt_tokens: int
    ttft_s: float
    decode_s: float
    prefill_s: float | None
    frontend_s: float | None


@dataclass(frozen=True, slots=True)
class RunFit:
    """What a run says: observations under the last schedule, and how it came to rest."""

    at: Observations
    theta: Array
    rounds: int
    settled: bool
    turns: int


def fit_run(
    seen: Sequence[Seen], config: EngineConfig, prior: Prior, frontend: tuple[float, float]
) -> RunFit:
    """Iterate to the coefficients whose own schedule they explain.

    `frontend` is (seconds a request, seconds a prompt token) of the API server. Raises FitError
    for a run of too few turns.
    """
    if len(seen) < LEAST_TURNS:
        raise FitError(f"{len(seen)} answered turns; at least {LEAST_TURNS} are needed")
    logs = prior.of("linear")[0].copy()
    rounds, moved = 0, np.inf
    while rounds < ROUNDS and moved > SETTLED:
        at = replayed(seen, config, cost_of(np.exp(logs), "linear"), frontend)
        found = np.log(fit_form(at, prior, "linear").theta)
        step = (found - logs) * (DAMPING if rounds else 1.0)
        # Only what the run can tell has to come to rest.
        moved = float(np.abs(step * _weights(at, np.exp(logs))).max())
        logs = logs + step
        rounds += 1
    at = replayed(seen, config, cost_of(np.exp(logs), "linear"), frontend)
    return RunFit(at, np.exp(logs), rounds, moved <= SETTLED, len(seen))


def _weights(at: Observations, theta: Array) -> Array:
    """Share of each coefficient in all that was seen."""
    sums = np.array(
        [
            at.steps.sum(),
            at.prefill.sum(),
            at.decodes.sum(),
            at.context.sum(),
            at.attention.sum(),
        ]
    )
    parts: Array = theta[:5] * sums
    total: Array = parts / max(float(parts.sum()), 1e-12)
    return total


def replayed(
    seen: Sequence[Seen], config: EngineConfig, cost: StepCost, frontend: tuple[float, float]
) -> Observations:
    """What ran in the windows of each turn by the model, with what the run saw of them.

    Turns are sent when they were, whatever the model makes of those before: so a wrong coefficient
    does not move the load.
    """
    parts = [_replica(list(turns), config, cost, frontend) for turns in _by_replica(seen).values()]
    rows = np.concatenate([part for part in parts if len(part)])
    n, prefill, decodes, context, attention, seconds, group = rows.T
    spread = WINDOW_NOISE * seconds + WINDOW_FLOOR_S
    return Observations(n, prefill, decodes, context, attention, seconds, spread, group.astype(int))


def _by_replica(seen: Sequence[Seen]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for one in sorted(seen, key=lambda s: s.sent_s):
        found.setdefault(one.replica, []).append(one)
    return found


class _Log:
    """Times and running sums of n, P, D, K, A over the steps of an engine."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, float, float, float, float]] = []

    def take(self, span: Span) -> None:
        """Called when steps are done."""
        n, batch = span.steps, span.batch
        prefill, ones, context, attention = 0, 0, 0.0, 0.0
        for _, tokens, start in batch.chunks:
            if tokens == 1:
                ones += 1
                context += start + 1
            else:
                prefill += tokens
                attention += tokens * (start + 0.5 * tokens)
        growth = batch.decodes * n * (n - 1) / 2
        self.rows.append(
            (
                span.start_s,
                span.boundary_s(n),
                float(n),
                float(n * prefill),
                float(n * (batch.decodes + ones)),
                n * (batch.context + context) + growth,
                n * attention,
            )
        )

    def between(self, from_s: Array, to_s: Array) -> Array:
        """Sums over each window, one row a window; a step cut by an edge counts in part."""
        rows = np.array(sorted(self.rows))
        times = rows[:, :2].ravel()
        totals = np.cumsum(rows[:, 2:], axis=0)
        before = np.vstack([np.zeros(5), totals[:-1]])
        columns = []
        for i in range(5):
            values = np.stack([before[:, i], totals[:, i]], axis=1).ravel()
            columns.append(np.interp(to_s, times, values) - np.interp(from_s, times, values))
        return np.stack(columns, axis=1)


def _replica(
    turns: list[Seen], config: EngineConfig, cost: StepCost, frontend: tuple[float, float]
) -> Array:
    """Rows (n, P, D, K, A, seconds, group) of one replica's turns."""
    replica, log = Replica(config, cost, Frontend(*frontend)), _Log()
    replica.engine.on_span = log.take
    sent: list[tuple[Seen, Request, float]] = []
    first_s = turns[0].sent_s
    for number, one in enumerate(turns):
        at_s = one.sent_s - first_s
        replica.engine.run_until(at_s)
        try:
            request, engine_s = replica.send(number, one.turn, at_s)
        except ValueError:
            continue  # longer than the server's own limit by the model's count of tokens
        sent.append((one, request, engine_s))
    while (wake_s := replica.engine.next_wake_s()) is not None:
        replica.engine.run_until(wake_s)
    done = [entry for entry in sent if entry[1].finished]
    return _windows(done, log) if done and log.rows else np.empty((0, 7))


def _windows(done: list[tuple[Seen, Request, float]], log: _Log) -> Array:
    """The prefill window of every turn, then the decode window of every turn."""
    starts, firsts, lasts, prefill_s, decode_s = [], [], [], [], []
    for one, request, engine_s in done:
        told = one.prefill_s is not None
        starts.append(request.scheduled_s if told else engine_s)
        firsts.append(request.first_token_s)
        lasts.append(request.last_token_s)
        prefill_s.append(one.prefill_s if told else one.ttft_s - (engine_s - request.arrival_s))
        decode_s.append(one.decode_s)
    start, first, last = (np.array(v, float) for v in (starts, firsts, lasts))
    sums = np.vstack([log.between(start, first), log.between(first, last)])
    seconds = np.concatenate([np.array(prefill_s, float), np.array(decode_s, float)])
    group = np.tile(np.arange(len(done)), 2)
    rows: Array = np.column_stack([sums, seconds, group])
    usable = (seconds > 1e-4) & (sums[:, 0] > 0)
    return rows[usable]
