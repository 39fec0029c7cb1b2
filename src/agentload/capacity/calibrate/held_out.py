"""Probe E: what the fitted model says of a workload it was not fitted on, against what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentload.capacity.calibrate.probes import Ask, Heard, Probe
from agentload.sim.core import EngineConfig, Frontend, Offline, Replica, StepCost, Turn

SESSIONS, ANSWER_TOKENS, NEW_TOKENS = 5, 48, 300
LEAST_TURNS = 10
BUSY = 0.6  # of the time that turns take one after the other


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity predicted and measured; seconds, or tokens a second."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative, of the prediction."""
        return self.predicted / self.measured - 1


def held_out(bases: Sequence[int], turn_s: float, limit_s: float) -> Probe | None:
    """Turns of five sessions on contexts that earlier probes left cached; None without time.

    `turn_s` is what one of them should take alone.
    """
    every_s = max(0.02, turn_s / BUSY / SESSIONS)
    turns = min(100, int(limit_s / every_s))
    if turns < LEAST_TURNS or not bases:
        return None
    asks = tuple(
        Ask(f"C{bases[i % len(bases)]}", bases[i % len(bases)], NEW_TOKENS, ANSWER_TOKENS,
            i * every_s)
        for i in range(turns)
    )  # fmt: skip
    return Probe(f"E: {turns} turns of {SESSIONS} sessions, held out", asks)


def predicted(
    probe: Probe, heard: Sequence[Heard], config: EngineConfig, cost: StepCost, frontend: Frontend
) -> list[tuple[float, float]]:
    """(TTFT, E2E) in s of each ask by the scheduler model, its contexts cached beforehand."""
    offline = Offline([Replica(config, cost, frontend)], lambda *_: 0)
    size = config.block_size
    start_s = 0.0
    for base in {ask.base: ask for ask in probe.asks}.values():
        cached = base.base_tokens // size * size
        offline.add_session(
            iter([Turn(((base.base, cached), (f"{base.base} cold", 1)), 1)]), start_s
        )
        start_s += 1.0
    offline.run()
    first_s = offline.now_s + 1.0
    sessions = {}
    for number, (ask, answer) in enumerate(zip(probe.asks, heard, strict=True)):
        told = answer.cached_tokens
        shared = (ask.base_tokens if told is None else told) // size * size
        shared = min(shared, ask.base_tokens // size * size)
        rest = max(1, answer.prompt_tokens - shared)
        prompt = ((ask.base, shared), (f"turn {number}", rest)) if shared else ((number, rest),)
        turn = Turn(prompt, max(1, sum(answer.tokens)))
        sessions[offline.add_session(iter([turn]), first_s + ask.after_s)] = number
    found = [(0.0, 0.0)] * len(probe.asks)
    for result in offline.run():
        if result.session in sessions:
            found[sessions[result.session]] = (result.ttft_s, result.e2e_s)
    return found


def compare(heard: Sequence[Heard], by_model: Sequence[tuple[float, float]]) -> list[Compared]:
    """TTFT, time per output token, E2E, throughput."""
    ttft = np.array([one.ttft_s for one in heard])
    e2e = np.array([one.chunks_s[-1] - one.sent_s for one in heard])
    tokens = np.array([sum(one.tokens) for one in heard])
    model_ttft, model_e2e = np.array(by_model).T
    start = np.array([one.sent_s for one in heard])
    several = tokens > 1
    tpot = ((e2e - ttft) / np.maximum(tokens - 1, 1))[several]
    model_tpot = ((model_e2e - model_ttft) / np.maximum(tokens - 1, 1))[several]
    span = float((start + e2e).max() - start.min())
    model_span = float((start + model_e2e).max() - start.min())
    return [
        Compared("TTFT mean", float(model_ttft.mean()), float(ttft.mean())),
        Compared("TTFT P50", float(np.median(model_ttft)), float(np.median(ttft))),
        Compared("TTFT P90", float(np.quantile(model_ttft, 0.9)), float(np.quantile(ttft, 0.9))),
        Compared("time per output token", float(model_tpot.mean()), float(tpot.mean())),
        Compared("E2E mean", float(model_e2e.mean()), float(e2e.mean())),
        Compared("output tokens/s", float(tokens.sum()) / model_span, float(tokens.sum()) / span),
    ]


def shifted(heard: Sequence[Heard], probe: Probe) -> Probe:
    """The probe with the instants at which its requests were really sent."""
    first_s = min(one.sent_s for one in heard)
    asks = tuple(
        replace(ask, after_s=one.sent_s - first_s)
        for ask, one in zip(probe.asks, heard, strict=True)
    )
    return replace(probe, asks=asks)
