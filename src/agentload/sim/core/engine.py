"""vLLM's engine core on a virtual clock: batches, step times, arrivals."""

import heapq
import math
from collections.abc import Callable, Iterator

from agentload.sim.core.admission import prepare
from agentload.sim.core.blocks import UNLIMITED, Node
from agentload.sim.core.config import EngineConfig
from agentload.sim.core.cost import StepCost
from agentload.sim.core.histogram import Histogram
from agentload.sim.core.request import Request, State
from agentload.sim.core.scheduler import Scheduler
from agentload.sim.core.step import Batch, Counters, Span

Callback = Callable[[Request, float], None]


class Engine:
    """One replica: requests arrive, are scheduled as vLLM would, finish.

    `on_first_token` and `on_finish` are called with (request, time in s) when the step that
    produced the token ends, in the order of vLLM's running list; they may call `add` and `abort`.
    Decode-only stretches are one jump; `max_jump_steps=1` makes every wake one step.
    Aborted requests get no callback.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        *,
        on_first_token: Callback | None = None,
        on_finish: Callback | None = None,
        max_jump_steps: int | None = None,
    ) -> None:
        self.config = config
        self.cost = cost
        self.now_s = 0.0
        self.itl = Histogram()  # gaps between the tokens of a request
        self.on_span: Callable[[Span], None] | None = None  # told of steps when they are done
        self._on_first_token = on_first_token
        self._on_finish = on_finish
        self._max_jump_steps = max_jump_steps or UNLIMITED
        self._scheduler = Scheduler(config)
        self._span: Span | None = None
        self._arrivals: list[tuple[float, int, Request]] = []
        self._aborts: list[tuple[float, int, Request]] = []
        self._serial = 0

    # -- the outside ----------------------------------------------------------------------------

    def add(self, request: Request, at_s: float) -> None:
        """A tokenized request reaches the waiting queue at `at_s` (>= now).

        ValueError: a time in the past, a path entry before the last that does not cover whole
        blocks, a prompt that leaves no room below `max_model_len`, or a sequence that could never
        fit in the KV cache. Output beyond `max_model_len` is cut.
        """
        if at_s < self.now_s:
            raise ValueError(
                f"request {request.request_id}: at_s={at_s} is before now ({self.now_s})"
            )
        prepare(request, self.config)
        for node in request.nodes:
            node.users[request] = None
        self._serial += 1
        heapq.heappush(self._arrivals, (at_s, self._serial, request))
        self._cut_for_arrival(at_s)

    def abort(self, request: Request, at_s: float) -> None:
        """The client went away: the request is dropped at the end of the step under way.

        No effect on a request that has finished.
        """
        if at_s < self.now_s:
            raise ValueError(f"at_s={at_s} is before now ({self.now_s})")
        if self._span is None:
            self._abort(request)
            return
        self._serial += 1
        heapq.heappush(self._aborts, (at_s, self._serial, request))
        self._span.set_steps(min(self._span.steps, max(1, self._span.steps_before(at_s))))

    def next_wake_s(self) -> float | None:
        """When the next thing happens; None when idle and nothing is to arrive."""
        if self._span is not None:
            return self._span.end_s
        return self._arrivals[0][0] if self._arrivals else None

    def run_until(self, t_s: float) -> None:
        """Execute everything that ends at or before `t_s`."""
        while (wake_s := self.next_wake_s()) is not None and wake_s <= t_s:
            self.now_s = max(self.now_s, wake_s)
            if self._span is None:
                self._begin(self.now_s)
            else:
                self._end_span(self._span, wake_s)
        if t_s < math.inf:
            self.now_s = max(self.now_s, t_s)

    def decoding(self) -> Iterator[Request]:
        """Running requests that have their first token."""
        return (r for r in self._scheduler.running if r.first_token_s is not None)

    def split_node(self, node: Node, blocks: int) -> Node:
        """Cut a node's chain after `blocks` blocks, because prompts diverge there.

        The node keeps the front; returns the new node below it that holds the rest. Requests in
        flight follow; paths of later requests must name both.
        """
        if blocks < 1:
            raise ValueError(f"blocks={blocks} must be at least 1")
        return self._scheduler.pool.split_node(node, blocks)

    def reset_prefix_cache(self, at_s: float) -> bool:
        """Forget all cached blocks; False, as in vLLM, while any request holds blocks."""
        self.run_until(at_s)
        return self._scheduler.pool.reset()

    @property
    def waiting_count(self) -> int:
        """Requests in the waiting queue, those still to arrive excluded."""
        return len(self._scheduler.waiting) + sum(at <= self.now_s for at, _, _ in self._arrivals)

    @property
    def queued_tokens(self) -> int:
        """Tokens of accepted prompts still to be computed, those that may be cached included."""
        scheduler = self._scheduler
        waiting = sum(request.total_tokens for request in scheduler.waiting)
        arriving = sum(request.prompt_tokens for _, _, request in self._arrivals)
        prefilling = sum(r.target - r.computed for r in scheduler.prefilling)
        return waiting + arriving + prefilling

    @property
    def running_count(self) -> int:
        """Requests in the running list."""
        return len(self._scheduler.running)

    @property
    def kv_usage(self) -> float:
        """Share (0..1) of the blocks held by requests; cached but free ones do not count."""
        pool = self._scheduler.pool
        return 1.0 - pool.free / pool.total

    @property
    def counters(self) -> Counters:
        """Totals since the engine was made."""
        return self._scheduler.counters

    # -- the inside -----------------------------------------------------------------------------

    def _cut_for_arrival(self, at_s: float) -> None:
        """Shorten a jump so that it ends at the first pass that sees an arrival at `at_s`."""
        span, scheduler = self._span, self._scheduler
        if (
            span is None
            or span.steps == 1
            or scheduler.waiting
            or len(scheduler.running) >= self.config.max_num_seqs
        ):
            return
        steps = span.steps_before(at_s) + int(self.config.async_scheduling)
        span.set_steps(min(span.steps, max(1, steps)))

    def _begin(self, now_s: float, batch: Batch | None = None, *, freed: bool = False) -> None:
        """Start the next span; `freed`: blocks were freed after the batch was formed."""
        scheduler = self._scheduler
        if batch is None:
            batch = self._pass(now_s, now_s)
            while batch.empty and batch.preempted:
                batch = self._pass(now_s, now_s)
        if batch.empty:
            if scheduler.waiting and not scheduler.running:
                raise AssertionError("the head of the waiting queue can never be admitted")
            return
        span = self._span = Span.of(batch, now_s, self.cost)
        scheduler.counters.prefill_computed += sum(tokens for _, tokens, _ in batch.chunks)
        changed = batch.decodes != scheduler.decoders.count or (freed and scheduler.waiting)
        if not (batch.chunks or batch.preempted or changed or scheduler.head_gains()):
            span.set_steps(self._jump_steps())
        if self._arrivals:
            self._cut_for_arrival(self._arrivals[0][0])

    def _jump_steps(self) -> int:
        """Decode steps until a request ends or blocks run out, whichever is first."""
        decoders, scheduler = self._scheduler.decoders, self._scheduler
        if not decoders.count:
            return 1
        steps = min(decoders.steps_to_next_end(), self._max_jump_steps)
        available = scheduler.pool.free + scheduler.taken_ahead
        if decoders.blocks_needed(steps) <= available:
            return steps
        low = 1
        while low < steps:
            middle = (low + steps + 1) // 2
            if decoders.blocks_needed(middle) <= available:
                low = middle
            else:
                steps = middle - 1
        return low

    def _pass(self, now_s: float, seen_s: float) -> Batch:
        """Run the scheduler with the requests that had arrived by `seen_s`."""
        arrivals, waiting = self._arrivals, self._scheduler.waiting
        while arrivals and arrivals[0][0] <= seen_s:
            request = heapq.heappop(arrivals)[2]
            request.state = State.WAITING
            waiting.append(request)
        return self._scheduler.schedule(now_s, seen_s)

    def _end_span(self, span: Span, now_s: float) -> None:
        """The steps under way are done: deliver their tokens and start what comes next.

        With asynchronous scheduling the next batch was formed when the last of them started:
        before its tokens were known, before what it frees was free.
        """
        scheduler = self._scheduler
        self._count(span, now_s)
        outputs = scheduler.step_done(span.batch, span.steps)
        self._count_outputs(outputs, now_s)
        batch = None
        if self.config.async_scheduling:
            last_start_s = span.start_s if span.steps == 1 else span.boundary_s(span.steps - 1)
            batch = self._pass(now_s, last_start_s)
        freed = self._process_aborts(now_s)
        self._span = None
        freed = self._deliver(outputs, now_s) or freed
        if batch is not None and batch.empty:
            batch = None
        self._begin(now_s, batch, freed=freed and batch is not None)

    def _count(self, span: Span, now_s: float) -> None:
        counters = self._scheduler.counters
        counters.steps += span.steps
        counters.busy_s += now_s - span.start_s
        if self.on_span is not None:
            self.on_span(span)
        decodes = self._scheduler.decoders.count
        if decodes:
            counters.generated += decodes * span.steps
            self.itl.add_ramp(span.first_s, span.growth_s, span.steps, decodes)

    def _count_outputs(self, outputs: list[Request], now_s: float) -> None:
        """Gaps of the tokens that ended a prefill; those of decoders are counted per step."""
        for request in outputs:
            if request.state is not State.LAST or request.fresh:
                self._scheduler.counters.generated += 1
                if request.last_token_s is not None:
                    self.itl.add(now_s - request.last_token_s)
            request.last_token_s = now_s

    def _process_aborts(self, now_s: float) -> bool:
        aborts = self._aborts
        due = False
        while aborts and aborts[0][0] <= now_s:
            request = heapq.heappop(aborts)[2]
            if request.state in (State.FINISHED, State.ABORTED):
                continue
            if request.state in (State.DECODING, State.LAST) or request.last_token_s == now_s:
                request.produced -= 1  # the token of the step under way is lost
                self._scheduler.counters.generated -= 1
            self._abort(request)
            due = True
        return due

    def _abort(self, request: Request) -> None:
        if request.state in (State.FINISHED, State.ABORTED):
            return
        if request.state is State.NEW:
            self._arrivals = [entry for entry in self._arrivals if entry[2] is not request]
            heapq.heapify(self._arrivals)
        self._scheduler.abort(request)

    def _deliver(self, outputs: list[Request], now_s: float) -> bool:
        """Hand over first and last tokens; whether a request finished."""
        calls: list[tuple[Callback | None, Request]] = []
        finished = False
        for request in outputs:
            if request.state is State.ABORTED:
                continue
            if request.first_token_s is None:
                request.first_token_s = now_s
                calls.append((self._on_first_token, request))
            if request.state is State.LAST:
                self._scheduler.finish(request)
                calls.append((self._on_finish, request))
                finished = True
        for callback, request in calls:
            if callback is not None:
                callback(request, now_s)
        return finished
