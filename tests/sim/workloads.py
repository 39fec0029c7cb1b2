"""Closed-loop session workloads in the form of the golden files, run through the fast core."""

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

from agentload.sim.core import Engine, EngineConfig, Node, Request, StepCost


@dataclass
class Drive:
    """Hands out each session's next turn: prompt = what was there + answer + appended tokens."""

    sessions: list[dict[str, Any]]
    shared: int
    turn: list[int] = field(init=False)
    prompt: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.turn = [0] * len(self.sessions)
        self.prompt = [s["first"] for s in self.sessions]

    def current(self, session: int) -> tuple[int, int, int]:
        """(request number, prompt tokens, output tokens) of the session's turn."""
        output = self.sessions[session]["turns"][self.turn[session]][0]
        return session * 1000 + self.turn[session], self.prompt[session], output

    def advance(self, session: int, now_s: float) -> float | None:
        """Move to the next turn; when it starts, or None after the last."""
        output, appended, think_s = self.sessions[session]["turns"][self.turn[session]]
        self.turn[session] += 1
        self.prompt[session] += output + appended
        if self.turn[session] >= len(self.sessions[session]["turns"]):
            return None
        return now_s + think_s


def engine_config(cfg: dict[str, Any]) -> EngineConfig:
    """A golden workload's settings as ours; they were recorded with vLLM 0.32."""
    return EngineConfig(
        max_num_seqs=cfg["max_num_seqs"],
        max_num_batched_tokens=cfg["max_batched"],
        enable_chunked_prefill=cfg["chunked"],
        enable_prefix_caching=cfg["prefix_cache"],
        num_blocks=cfg["num_blocks"],
        long_prefill_token_threshold=cfg["long_prefill_threshold"],
        reserve_full_isl=cfg["reserve_full_isl"],
        async_scheduling=cfg["async_sched"],
        max_model_len=200000 if cfg["chunked"] else min(200000, cfg["max_batched"]),
    )


def run_fast(
    config: EngineConfig,
    cost: StepCost,
    sessions: list[dict[str, Any]],
    shared: int,
    **options: Any,
) -> tuple[Engine, dict[int, Request]]:
    """All requests of a workload by number, and the engine afterwards."""
    drive = Drive(sessions, shared)
    common = Node()
    nodes = [Node() for _ in sessions]
    requests: dict[int, Request] = {}
    events: list[tuple[float, int, int]] = [(s["t0"], i * 1000, i) for i, s in enumerate(sessions)]
    heapq.heapify(events)

    def submit(session: int, at_s: float) -> None:
        number, prompt, output = drive.current(session)
        path = [(nodes[session], prompt)]
        if shared:
            path = [(common, shared), (nodes[session], prompt - shared)]
        requests[number] = Request(number, path, output, at_s)
        engine.add(requests[number], at_s)

    def finished(request: Request, now_s: float) -> None:
        session = int(request.request_id) // 1000
        next_s = drive.advance(session, now_s)
        if next_s is not None:
            number = drive.current(session)[0]
            heapq.heappush(events, (next_s, number, session))

    engine = Engine(config, cost, on_finish=finished, **options)
    while events or engine.next_wake_s() is not None:
        wake_s = engine.next_wake_s()
        if events and events[0][0] <= (math.inf if wake_s is None else wake_s):
            at_s, _, session = heapq.heappop(events)
            submit(session, at_s)
        else:
            assert wake_s is not None
            engine.run_until(wake_s)
    return engine, requests
