"""The workload that `knob_validation.py` runs and predicts, and the figures it compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentload.capacity.calibrate.probes import Ask, Heard, Probe
from agentload.sim.core import EngineConfig, Frontend, Offline, Replica, StepCost, Turn

SESSIONS, TURNS = 8, 6
ROUNDS = 2  # each with sessions of its own, one after the other
FIRST_TOKENS, MORE_TOKENS = 2500, 900  # the first context, and by how much each session's is longer
NEW_TOKENS, ANSWER_TOKENS = 300, 120
# The first steps of a size touch memory for the first time, which took a virtual machine twice to
# three times as long as the step.
WARM_UPS, WARM_UP_TOKENS = 4, 19_000  # as many as a step of any setting may hold


def workload(spacing_s: float, number: int) -> Probe:
    """A round: sessions that begin cold and come back warm, one request every `spacing_s`."""
    asks = []
    for turn in range(TURNS):
        for session in range(SESSIONS):
            base = FIRST_TOKENS + session * MORE_TOKENS
            after_s = (turn * SESSIONS + session) * spacing_s
            new = NEW_TOKENS if turn else 16
            asks.append(Ask(f"S{number}.{session}", base, new, ANSWER_TOKENS, after_s))
    return Probe(f"knobs {number}", tuple(asks))


def warm_up() -> Probe:
    """A cold prompt that fills the largest step."""
    return Probe("warm-up", (Ask("", 0, WARM_UP_TOKENS, 2),))


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, measured or predicted; seconds."""

    cold: bool
    sent_s: float
    ttft_s: float
    e2e_s: float
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int


def measured(heard: Sequence[Heard]) -> list[Seen]:
    """What the client saw of a round."""
    first_s = min(one.sent_s for one in heard)
    return [
        Seen(
            number < SESSIONS,
            one.sent_s - first_s,
            one.ttft_s,
            one.chunks_s[-1] - one.sent_s,
            sum(one.tokens),
            one.prompt_tokens,
            one.cached_tokens or 0,
        )
        for number, one in enumerate(heard)
    ]


def predicted(
    heard: Sequence[Heard], config: EngineConfig, cost: StepCost, frontend: Frontend
) -> list[Seen]:
    """The requests of a round, sent at the same times, on the scheduler model."""
    offline = Offline([Replica(config, cost, frontend)], lambda *_: 0)
    first_s = min(one.sent_s for one in heard)
    size = config.block_size
    numbers = {}
    for number, one in enumerate(heard):
        shared = min(one.ask.base_tokens, one.prompt_tokens - 1) // size * size
        rest = one.prompt_tokens - shared
        prompt = ((one.ask.base, shared), (f"turn {number}", rest))
        turn = Turn(prompt, sum(one.tokens))
        numbers[offline.add_session(iter([turn]), one.sent_s - first_s)] = number
    found: dict[int, Seen] = {}
    for result in offline.run():
        number = numbers[result.session]
        request = result.request
        found[number] = Seen(
            number < SESSIONS,
            result.sent_s,
            result.ttft_s,
            result.e2e_s,
            request.output_tokens,
            request.prompt_tokens,
            request.cached_tokens or 0,
        )
    return [found[number] for number in sorted(found)]


def figures(rounds: Sequence[Sequence[Seen]]) -> Iterator[tuple[str, float]]:
    """(name, value) of what is compared; milliseconds, tokens a second, a share."""
    seen = [one for part in rounds for one in part]
    for name, cold in (("cold", True), ("warm", False)):
        ttft = np.array([one.ttft_s for one in seen if one.cold is cold]) * 1e3
        yield f"TTFT {name} P50 ms", float(np.quantile(ttft, 0.5))
        if not cold:  # sixteen cold turns have no 90th percentile
            yield f"TTFT {name} P90 ms", float(np.quantile(ttft, 0.9))
    tpot = [(o.e2e_s - o.ttft_s) / (o.output_tokens - 1) for o in seen if o.output_tokens > 1]
    yield "mean ITL ms", float(np.mean(tpot)) * 1e3
    yield "E2E mean ms", float(np.mean([one.e2e_s for one in seen])) * 1e3
    span = sum(max(one.sent_s + one.e2e_s for one in part) for part in rounds)
    yield "output tokens/s", sum(one.output_tokens for one in seen) / span
    prompt = sum(one.prompt_tokens for one in seen)
    yield "hit rate", sum(one.cached_tokens for one in seen) / prompt
