"""The scheduler core on the wall clock."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from agentload.clock import NS_PER_S, Clock
from agentload.sim.core.blocks import Node
from agentload.sim.core.config import EngineConfig
from agentload.sim.core.cost import StepCost
from agentload.sim.core.engine import Engine
from agentload.sim.core.frontend import Frontend
from agentload.sim.core.request import Request
from agentload.sim.server.timer import Timer, best_timer

_TELL_EVERY = 8  # chunks for each reading of the clock


class Sink(Protocol):
    """Who gets the tokens of one engine request. Times are simulated seconds."""

    request: Request
    ready_s: float
    generated: int
    last_token_s: float

    @property
    def limit(self) -> int: ...

    @property
    def finish_reason(self) -> str: ...

    def place(self) -> None:
        """Give the request its path, now that it comes to the engine."""

    def deliver(self) -> None:
        """Send what `generated` has grown by, in one chunk."""

    def refuse(self) -> None:
        """The waiting queue was full when the request came to the engine."""


class Observer(Protocol):
    """Who counts what the engine does. Times are simulated seconds."""

    def first_token(self, request: Request, at_s: float) -> None: ...

    def step(self, gaps_s: Counter[float], first_tokens: list[Request]) -> None: ...

    def finished(self, sink: Sink) -> None: ...


class LiveEngine:
    """Runs the core as wall time passes: one wake is one step, its tokens are sent at its end.

    The simulated timeline depends on when requests arrive, never on how late this process is: a
    late wake runs the steps that are due, at their own times, and sends their tokens together.

    `lateness` is told how late chunks were, and how many: wall seconds from the end of their step
    until the kernel had them.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        frontend: Frontend,
        observer: Observer,
        lateness: Callable[[float, int], None],
        clock: Clock,
        *,
        speed: float = 1.0,
        most_waiting: int | None = None,
        make_timer: Callable[[Callable[[], None]], Timer] = best_timer,
    ) -> None:
        self.engine = Engine(
            config,
            cost,
            on_first_token=self._first_token,
            on_finish=self._finish,
            max_jump_steps=1,
        )
        self.speed = speed
        self._frontend = frontend
        self._observer = observer
        self._lateness = lateness
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._most_waiting = most_waiting
        self._sinks: dict[int | str, Sink] = {}
        self._tokenizing: list[tuple[float, int, Sink]] = []
        self._serial = 0
        self._due: dict[Sink, None] = {}
        self._due_since_s = math.inf
        self._firsts: list[Request] = []
        self._gaps: Counter[float] = Counter()
        self._timer = make_timer(self._pump)

    # -- time -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """The monotonic wall instant."""
        return self._clock.now_ns()

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.simulated_s(self._clock.now_ns())

    def simulated_s(self, wall_ns: int) -> float:
        """The simulated instant of a monotonic wall one."""
        return (wall_ns - self._start_ns) / NS_PER_S * self.speed

    def wall_ns(self, at_s: float) -> int:
        """The monotonic wall instant of a simulated one."""
        return self._start_ns + round(at_s / self.speed * NS_PER_S)

    def seconds_since_start(self, wall_ns: int) -> float:
        return (wall_ns - self._start_ns) / NS_PER_S

    # -- requests -------------------------------------------------------------------------------

    @property
    def queue_is_full(self) -> bool:
        """Whether one more waiting request would be too many, as of now."""
        self._pump()
        return self._has_full_queue()

    def _has_full_queue(self) -> bool:
        return self._most_waiting is not None and self.engine.waiting_count >= self._most_waiting

    def submit(self, sinks: Sequence[Sink], tokenizer_load: float, *, token_ids: bool) -> None:
        """Send requests of one prompt through the tokenizer to the engine; sets their `ready_s`.

        `tokenizer_load` is the number of tokens that the tokenizer spends time on.
        """
        arrival_s = sinks[0].request.arrival_s
        ready_s = self._frontend.ready_s(arrival_s, math.ceil(tokenizer_load), token_ids=token_ids)
        for sink in sinks:
            sink.ready_s = ready_s
            self._sinks[sink.request.request_id] = sink
            self._serial += 1
            heapq.heappush(self._tokenizing, (ready_s, self._serial, sink))
        self._pump()

    def abort(self, sink: Sink) -> None:
        """Forget a request whose client went away; no effect once it has finished."""
        request = sink.request
        if self._sinks.pop(request.request_id, None) is None:
            return
        waiting = [entry for entry in self._tokenizing if entry[2] is not sink]
        if len(waiting) < len(self._tokenizing):
            heapq.heapify(waiting)
            self._tokenizing = waiting
            return
        self.engine.abort(request, max(self.now_s(), self.engine.now_s))
        self._arm()

    def current(self) -> Engine:
        """The core as of now, to read its state."""
        self._pump()
        return self.engine

    def split_node(self, node: Node, blocks: int) -> Node:
        return self.engine.split_node(node, blocks)

    def reset_prefix_cache(self) -> bool:
        self._pump()
        return self.engine.reset_prefix_cache(max(self.now_s(), self.engine.now_s))

    # -- running --------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Run everything due by now, in simulated order, then send the tokens it made."""
        now_s = self.now_s()
        while True:
            wake_s = self.engine.next_wake_s()
            step_s = math.inf if wake_s is None else wake_s
            ready_s = self._tokenizing[0][0] if self._tokenizing else math.inf
            if min(step_s, ready_s) > now_s:
                break
            if ready_s <= step_s:
                self._arrive(heapq.heappop(self._tokenizing)[2], ready_s)
            else:
                self._step(step_s)
        self.engine.run_until(now_s)  # nothing is left to run; this moves its clock
        self._send_due()
        self._arm()

    def _arrive(self, sink: Sink, at_s: float) -> None:
        # Of several that come at once the first must not start a step without the rest.
        if at_s > self.engine.now_s:
            self.engine.run_until(at_s)
        if self._has_full_queue():
            del self._sinks[sink.request.request_id]
            sink.refuse()
            return
        sink.place()  # not at the arrival: a prompt that came since may have cut the path's nodes
        self.engine.add(sink.request, max(at_s, self.engine.now_s))

    def _step(self, at_s: float) -> None:
        self.engine.run_until(at_s)
        for request in self.engine.decoding():
            sink = self._sinks.get(request.request_id)
            if sink is not None and request.generated > sink.generated:
                self._produced(sink, at_s)
        if self._gaps or self._firsts:
            self._observer.step(self._gaps, self._firsts)
            self._gaps, self._firsts = Counter(), []
            self._due_since_s = min(self._due_since_s, at_s)

    def _produced(self, sink: Sink, at_s: float) -> None:
        if sink.generated:
            self._gaps[at_s - sink.last_token_s] += 1
        sink.generated = sink.request.generated
        sink.last_token_s = at_s
        self._due[sink] = None

    def _first_token(self, request: Request, at_s: float) -> None:
        self._firsts.append(request)
        self._observer.first_token(request, at_s)

    def _finish(self, request: Request, at_s: float) -> None:
        sink = self._sinks.pop(request.request_id, None)
        if sink is not None:
            self._produced(sink, at_s)
            self._observer.finished(sink)

    def _send_due(self) -> None:
        if not self._due:
            return
        due, self._due = self._due, {}
        since_ns = self.wall_ns(self._due_since_s)
        told = 0
        for count, sink in enumerate(due, 1):
            sink.deliver()
            if count - told == _TELL_EVERY or count == len(due):
                self._lateness((self.now_ns() - since_ns) / NS_PER_S, count - told)
                told = count
        self._due_since_s = math.inf

    def _arm(self) -> None:
        """Set the timer for the next thing that happens."""
        wake_s = self.engine.next_wake_s()
        ready_s = self._tokenizing[0][0] if self._tokenizing else None
        times = [at_s for at_s in (wake_s, ready_s) if at_s is not None]
        if times:
            self._timer.set((min(times) - self.now_s()) / self.speed)
        else:
            self._timer.cancel()
