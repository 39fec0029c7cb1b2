"""Runs of the simulator's engine core, recorded as a client records them, beside its own log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import planted

from agentload.recording.record import (
    ChunkTrace,
    LoadgenSample,
    RunEvent,
    ScrapeSample,
    TurnRecord,
)
from agentload.sim.core import Engine, EngineConfig, Frontend, Offline, Replica, StepCost, Turn
from agentload.sim.core.offline import TurnResult
from agentload.sim.core.request import Request

SHARED_TOKENS = 14_992  # of every session's prompt, in whole blocks of 16
SEND_S = 0.001
ITL_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0)
LONG_S = 3600.0
METRICS = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
    "request_success_total", "generation_tokens_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """What the engine's gauges and counters say at one moment; after the time as in `METRICS`."""

    time_s: float
    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    finished: int
    generated: int
    queries: int
    hits: int


class LoggedEngine(Engine):
    """One step at a time: keeps the time of every token, and its own state second by second."""

    def __init__(self, config: EngineConfig, cost: StepCost, **given: Any) -> None:
        super().__init__(config, cost, max_jump_steps=1, **given)
        self.stamps: dict[Request, list[float]] = {}
        self.log: list[State] = []
        self._open: list[Request] = []

    def add(self, request: Request, at_s: float) -> None:
        super().add(request, at_s)
        self.stamps[request] = []
        self._open.append(request)

    def run_until(self, t_s: float) -> None:
        while (wake_s := self.next_wake_s()) is not None and wake_s <= t_s:
            while len(self.log) < wake_s:
                self._log(float(len(self.log)))
            super().run_until(wake_s)
            self._stamp()
        super().run_until(t_s)

    def log_until(self, at_s: float) -> None:
        """Go on logging the idle engine up to `at_s`."""
        while len(self.log) <= at_s:
            self._log(float(len(self.log)))

    def _stamp(self) -> None:
        for request in self._open:
            stamps = self.stamps[request]
            assert request.generated - len(stamps) in (0, 1)
            if request.generated > len(stamps):
                stamps.append(self.now_s)
        self._open = [request for request in self._open if not request.finished]

    def _log(self, at_s: float) -> None:
        super().run_until(at_s)
        c = self.counters
        self.log.append(
            State(
                at_s,
                self.running_count,
                self.waiting_count,
                self.kv_usage,
                c.preemptions,
                c.finished_requests,
                c.generated,
                c.prefix_queries,
                c.prefix_hits,
            )
        )


class LoggedReplica(Replica):
    """A replica with a `LoggedEngine`."""

    def __init__(self, config: EngineConfig, cost: StepCost, frontend: Frontend) -> None:
        super().__init__(config, cost, frontend)
        self.engine: LoggedEngine = LoggedEngine(config, cost, on_finish=self._finished)


@dataclass
class World:
    """Sessions against simulated servers. The defaults are healthy: cached prefixes, small
    chunks, slots and memory to spare.
    """

    sessions: int = 9
    turns_each: int = 14
    stagger_s: float = 4.0
    wait_s: float = 2.0
    wait_sigma: float = 0.0
    context: tuple[int, int] = (60_000, 120_000)
    output: tuple[int, int] = (60, 200)
    append_tokens: int = 750
    shared_tokens: int = SHARED_TOKENS
    changing_front: bool = False  # something in front of the prompt differs in every turn
    planned_front: bool = False  # and the scenario says so
    seed: int = 3
    chunked: bool = True
    prefix_cache: bool = True
    budget: int = 1024
    max_seqs: int = 64
    num_blocks: int = 120_000
    block_size: int = 16
    step_s: float = 0.015
    prefill_s_per_token: float = 1 / 40_000
    frontend_s_per_token: float = 2e-7
    frontend_base_s: float = 0.0
    restart_at_s: float | None = None  # from then on another engine answers, with an empty cache
    replicas: int = 1
    route: str = "session"  # or "turn": round robin, or "first": nearly all on the first replica
    repeats: int = 1  # the same sessions, that often, one after the other; the last one is recorded
    offline: Offline = field(init=False)
    routed: int = 0
    rows: list[TurnRecord] = field(default_factory=list)
    traces: list[ChunkTrace] = field(default_factory=list)
    scrape: list[ScrapeSample] = field(default_factory=list)
    loadgen: list[LoadgenSample] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)

    def run(self) -> World:
        config = EngineConfig(
            max_num_seqs=self.max_seqs,
            max_num_batched_tokens=self.budget if self.chunked else 131_072,
            num_blocks=self.num_blocks,
            enable_chunked_prefill=self.chunked,
            enable_prefix_caching=self.prefix_cache,
            block_size=self.block_size,
            max_model_len=131_072,
        )
        cost = StepCost(self.step_s, self.prefill_s_per_token, 0.0, 0.0, 0.0)
        servers = self.replicas if self.restart_at_s is None else 2
        frontends = [
            Frontend(self.frontend_base_s, self.frontend_s_per_token, workers=16)
            for _ in range(servers)
        ]
        self.offline = Offline([LoggedReplica(config, cost, f) for f in frontends], self._server)
        for repeat in range(self.repeats):
            begin_s = repeat * LONG_S
            before = len(self.offline.results)
            for number in range(self.sessions):
                start_s = begin_s + 2.0 + number * self.stagger_s
                self.offline.add_session(self._turns(number), start_s)
            self.offline.run(begin_s + LONG_S - 1.0)
        self._record(self.offline.results[before:], begin_s)
        self._scrape(begin_s)
        return self

    def _server(self, session: int, turn: Turn, replicas: Sequence[Replica]) -> int:
        del turn
        if self.restart_at_s is not None:
            return int(self.offline.now_s >= self.restart_at_s)
        if self.route == "turn":
            self.routed += 1
            return self.routed % len(replicas)
        if self.route == "first":
            return int(session == 0) % len(replicas)
        return session % len(replicas)

    @property
    def engines(self) -> list[LoggedEngine]:
        found = [replica.engine for replica in self.offline.replicas]
        return [engine for engine in found if isinstance(engine, LoggedEngine)]

    def _turns(self, session: int) -> Iterator[Turn]:
        rng = random.Random(f"{self.seed}/{session}")
        own = rng.randint(*self.context) - self.shared_tokens
        for index in range(self.turns_each):
            output = rng.randint(*self.output)
            wait_s = self.wait_s * rng.uniform(0.5, 1.5) * rng.lognormvariate(0.0, self.wait_sigma)
            front = (("shared", self.shared_tokens),) if self.shared_tokens else ()
            if self.changing_front:
                name = f"{session}/{index}"
                front = ((f"front {name}", self.block_size), (f"shared {name}", self.shared_tokens))
                path = (*front, (f"own {name}", own))
            else:
                path = (*front, (f"session {session}", own))
            yield Turn(path, output, wait_s)
            own += output + self.append_tokens

    def _record(self, results: list[TurnResult], begin_s: float) -> None:
        held: dict[int, int] = {}
        results = sorted(results, key=lambda r: r.request.request_id)
        numbers = {n: i for i, n in enumerate(dict.fromkeys(r.session for r in results))}
        for r in results:
            session, request = numbers[r.session], r.request
            engine = self.engines[r.replica]
            stamps = engine.stamps[request]
            planned = 0 if self.planned_front else held.get(session, self.shared_tokens)
            self.rows.append(self._row(r, session, stamps, begin_s, planned))
            held[session] = request.prompt_tokens + request.output_tokens
            gaps = [round((b - a) * 1e6) for a, b in pairwise(stamps)]
            self.traces.append(planted.trace(self.rows[-1], gaps))

    def _row(
        self, r: TurnResult, session: int, stamps: list[float], begin_s: float, planned: int
    ) -> TurnRecord:
        request = r.request
        assert request.scheduled_s is not None
        start, first, last = r.sent_s, stamps[0], stamps[-1]
        queue, prefill = request.scheduled_s - r.engine_s, first - request.scheduled_s
        return planted.turn(
            f"s{session}",
            r.turn_index,
            start=start - begin_s,
            ttft=first - start,
            decode=last - first,
            send_end_s=start - begin_s + SEND_S,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            planned_prompt_tokens=request.prompt_tokens,
            planned_prefix_tokens=planned,
            output_tokens=request.output_tokens,
            output_chunks=request.output_tokens,
            server_queue_s=queue,
            server_prefill_s=prefill,
            server_decode_s=last - first,
            frontend_s=first - start - SEND_S - queue - prefill,
            replica=f"127.0.0.1:{8000 + r.replica}" if self.replicas > 1 else None,
        )

    def _scrape(self, begin_s: float) -> None:
        """What the address of the server shows, second by second."""
        end_s = max(row.end_s for row in self.rows if row.end_s is not None) + begin_s
        for engine in self.engines:
            engine.log_until(end_s + 1.0)
        for states in zip(*(engine.log for engine in self.engines), strict=False):
            time_s = states[0].time_s - begin_s
            restarted = self.restart_at_s is not None and time_s >= self.restart_at_s
            answering = states if self.replicas > 1 else (states[int(restarted)],)
            if 0 <= time_s <= end_s - begin_s + 1.0:
                for port, state in enumerate(answering, 8000):
                    self._scrape_state(time_s, port, state)
        self._scrape_gaps()

    def _scrape_state(self, time_s: float, port: int, state: State) -> None:
        for name, value in zip(METRICS, astuple(state)[1:], strict=True):
            sample = planted.gauge(time_s, f"vllm:{name}", float(value))
            endpoint = f"http://127.0.0.1:{port}/metrics"
            self.scrape.append(replace(sample, endpoint=endpoint))

    def _scrape_gaps(self) -> None:
        """The server's histogram of gaps, at the begin and at the end."""
        gaps = [gap / 1e6 for trace in self.traces for gap in trace.gaps_us]
        end_s = max((s.time_s for s in self.scrape), default=0.0)
        name = "vllm:inter_token_latency_seconds"
        counts = {f"{b:g}": sum(gap <= b for gap in gaps) for b in ITL_BOUNDS_S}
        counts["+Inf"] = len(gaps)
        for time_s, share in ((0.0, 0), (end_s, 1)):
            for bound, count in counts.items():
                self.scrape.append(
                    planted.gauge(time_s, f"{name}_bucket", float(share * count), le=bound)
                )
            self.scrape.append(planted.gauge(time_s, f"{name}_sum", share * sum(gaps)))
            self.scrape.append(planted.gauge(time_s, f"{name}_count", float(share * len(gaps))))

    def settings(self) -> dict[str, Any]:
        return {
            "enable_chunked_prefill": self.chunked,
            "enable_prefix_caching": self.prefix_cache,
            "max_num_batched_tokens": self.budget if self.chunked else 131_072,
            "max_num_seqs": self.max_seqs,
            "block_size": self.block_size,
            "num_gpu_blocks": self.num_blocks,
        }

    def write(self, folder: Path, arm: str, **of_manifest: Any) -> Path:
        settings = self.settings() | of_manifest.pop("settings", {})
        run_id = f"{folder.name}-{arm}"
        return planted.write_run(
            folder,
            [replace(row, run_id=run_id) for row in self.rows],
            self.traces,
            self.scrape,
            self.loadgen,
            self.events,
            **(
                {
                    "run_id": run_id,
                    "arm": {"name": arm, "settings": settings},
                    "measured_from_s": 0.0,
                    "scenario": {"seed": self.seed},
                }
                | of_manifest
            ),
        )
