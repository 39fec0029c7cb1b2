"""A server in virtual time whose step cost no formula of the model's has."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from agentload.capacity.calibrate.probes import Ask, Heard, Probe
from agentload.sim.core import Engine, EngineConfig, Frontend, Node, Request, StepCost


@dataclass
class HiddenCost:
    """A step cost with noise; `shape` may be any function of P, D, K, A."""

    shape: Callable[[float, float, float, float], float]
    rng: random.Random
    noise: float = 0.02

    def step_s(self, prefill: int, decodes: int, context: int, attention: float) -> float:
        seconds = self.shape(prefill, decodes, context, attention)
        return seconds * max(0.2, 1 + self.rng.gauss(0, self.noise))

    def growth_s(self, decodes: int) -> float:
        del decodes
        return 0.0


def linear(c: StepCost) -> Callable[[float, float, float, float], float]:
    return lambda p, d, k, a: c.c0 + c.c1 * p + c.c2 * d + c.c3 * k + c.c4 * a


def tiles(
    c: StepCost, tile: int = 128, overlap_free_s: float = 0.003
) -> Callable[[float, float, float, float], float]:
    """A roofline over whole tiles of matrix multiplication."""

    def shape(p: float, d: float, k: float, a: float) -> float:
        tokens = tile * math.ceil((p + d) / tile) if p else d
        weights = max(c.c0 - overlap_free_s, c.c1 * tokens)
        return overlap_free_s + weights + c.c2 * d + c.c3 * k + c.c4 * a

    return shape


class VirtualServer:
    """Plays probes on a hidden engine; the client's clock adds `jitter_s` to each chunk."""

    def __init__(
        self,
        config: EngineConfig,
        shape: Callable[[float, float, float, float], float],
        *,
        frontend: tuple[float, float] = (0.004, 2.5e-6),
        noise: float = 0.02,
        jitter_s: float = 5e-4,
        seed: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.engine = Engine(
            config,
            HiddenCost(shape, self.rng, noise),  # type: ignore[arg-type]
            on_first_token=self._first,
            on_finish=self._finish,
            max_jump_steps=1,
        )
        self.frontend = Frontend(*frontend)
        self.jitter_s = jitter_s
        self.sent = 0
        self._nodes: dict[Hashable, Node] = {}
        self._stamps: dict[Request, list[float]] = {}
        self._over: set[Request] = set()

    def now_s(self) -> float:
        return self.engine.now_s

    def play(self, probe: Probe) -> Sequence[Heard]:
        start = self.engine.now_s + 0.1
        requests: list[tuple[Ask, float, Request]] = []
        for ask in sorted(probe.asks, key=lambda a: a.after_s):
            requests.append((ask, start + ask.after_s, self._send(ask, start + ask.after_s)))
        held = {id(ask): (sent, request) for ask, sent, request in requests}
        metronome = held[id(probe.asks[0])][1] if probe.metronome else None
        others = [request for _, _, request in requests if request is not metronome]
        while not all(request in self._over for request in others):
            self._step()
        if metronome is not None and metronome not in self._over:
            for _ in range(3):
                self._step()
            self.engine.abort(metronome, self.engine.now_s)
            while not (metronome.aborted or metronome.finished):
                self._step()
        return [self._heard(ask, *held[id(ask)]) for ask in probe.asks]

    def _send(self, ask: Ask, at_s: float) -> Request:
        self.sent += 1
        size = self.config.block_size
        shared = ask.base_tokens // size * size
        path = [(self._nodes.setdefault(ask.base, Node()), shared)] if shared else []
        rest = ask.prompt_tokens - shared
        path.append((Node(), rest))
        request = Request(self.sent, path, ask.output_tokens, at_s)
        self._stamps[request] = []
        self.engine.add(request, self.frontend.ready_s(at_s, request.prompt_tokens))
        return request

    def _step(self) -> None:
        wake = self.engine.next_wake_s()
        assert wake is not None
        running = list(self.engine.decoding())
        self.engine.run_until(wake)
        for request in running:
            if not request.aborted and request.generated > len(self._stamps[request]):
                self._stamps[request].append(wake)

    def _first(self, request: Request, now_s: float) -> None:
        self._stamps[request].append(now_s)

    def _finish(self, request: Request, now_s: float) -> None:
        if len(self._stamps[request]) < request.produced:
            self._stamps[request].append(now_s)
        self._over.add(request)

    def _heard(self, ask: Ask, sent_s: float, request: Request) -> Heard:
        stamps = [at + abs(self.rng.gauss(0, self.jitter_s)) for at in self._stamps[request]]
        stamps = sorted(stamps)
        return Heard(
            ask=ask,
            sent_s=sent_s,
            chunks_s=tuple(stamps),
            tokens=(1,) * len(stamps),
            usable=(True,) * len(stamps),
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens or 0,
        )
