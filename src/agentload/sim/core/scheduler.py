"""One pass of vLLM V1's scheduler over the running and the waiting requests."""

import sys
from collections import deque
from collections.abc import Iterable

from agentload.sim.core.blocks import BlockPool, Node
from agentload.sim.core.config import EngineConfig
from agentload.sim.core.decoders import Decoders
from agentload.sim.core.request import Request, State
from agentload.sim.core.step import Batch, Counters

NONE, ALL = 0, sys.maxsize  # places in the running list, see `Decoders.hashable`


class Scheduler:
    """Waiting queue, running list and their blocks."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(
            config.usable_blocks,
            caching=config.enable_prefix_caching,
            unhashed_first=config.unhashed_blocks_first,
        )
        self.decoders = Decoders(config.block_size, ahead=config.async_scheduling)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in order of admission
        self.prefilling: dict[Request, None] = {}  # the part of it that is not decoding, in order
        self.counters = Counters()
        self.taken_ahead = 0  # blocks already taken for the decoders' next step
        self._admissions = 0

    # -- the pass -------------------------------------------------------------------------------

    def schedule(self, now_s: float, seen_s: float) -> Batch:
        """Form the next batch; `seen_s` is when vLLM would have run this pass.

        Requests in state LAST are skipped: their last step is already under way.
        """
        batch = Batch()
        threshold = self._threshold()
        budget = self._schedule_running(batch, threshold)
        if budget is None:
            budget = self._schedule_running_in_order(batch, threshold, now_s)
        batch.decodes = self.decoders.count
        batch.context = self.decoders.context
        if not batch.preempted and self.waiting:
            self._admit(batch, budget, threshold, seen_s)
        return batch

    def _threshold(self) -> int:
        threshold = self.config.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) <= 1
        if not threshold or (alone and self.config.threshold_needs_company):
            return self.config.max_num_batched_tokens
        return threshold

    def _schedule_running(self, batch: Batch, threshold: int) -> int | None:
        """Give all running requests what they want; None when blocks do not suffice.

        Only the last one can be short of budget: nobody is admitted behind a request that did not
        get all it wanted, and what a request wants never grows while others are behind it. So
        every decoder is scheduled, and the order matters for blocks alone.
        """
        budget = self.config.max_num_batched_tokens - self.decoders.count
        needed = ahead = self.decoders.blocks_needed()
        grants = []
        for request in self.prefilling:
            tokens = min(request.target - request.computed, threshold, budget)
            if tokens:
                grants.append((request, tokens))
                needed += self._blocks_for(request, tokens)
                budget -= tokens
        if needed > self.pool.free:
            return None
        self.taken_ahead = ahead
        self.pool.take(ahead)
        for request, tokens in grants:
            self._grant(batch, request, tokens)
        return budget

    def _schedule_running_in_order(self, batch: Batch, threshold: int, now_s: float) -> int:
        """One by one in running order, preempting from the tail when blocks run out."""
        budget = self.config.max_num_batched_tokens
        self.taken_ahead = 0
        for request in list(self.running):
            if request not in self.running or budget <= 0:
                break
            if request.state is State.LAST:
                continue
            if request.state is State.DECODING:
                tokens, needed = 1, int(self.decoders.needs_block(request))
            else:
                tokens = min(request.target - request.computed, threshold, budget)
                needed = self._blocks_for(request, tokens)
            if not self._make_room(needed, request, batch, now_s):
                break
            if request.state is State.DECODING:
                self.taken_ahead += needed
                self.pool.take(needed)
            else:
                self._grant(batch, request, tokens)
            budget -= tokens
        return budget

    def _admit(self, batch: Batch, budget: int, threshold: int, seen_s: float) -> None:
        config = self.config
        while budget > 0 and self.waiting and len(self.running) < config.max_num_seqs:
            request = self.waiting[0]
            total = request.total_tokens
            self._settle(request.nodes, ALL)
            pieces = self.pool.lookup(request, (total - 1) // config.block_size)
            hit = sum(high - low for _, low, high in pieces)
            cached = hit * config.block_size
            tokens = min(total - cached, threshold)
            if tokens > budget:
                if not config.chunks_prefills:
                    return
                tokens = budget
            reserve = total if config.reserve_full_isl else cached + tokens
            reviving = sum(high - low for extent, low, high in pieces if not extent.holders)
            if -(-reserve // config.block_size) - hit + reviving > self.pool.free:
                return
            self.waiting.popleft()
            self.pool.hold(request, pieces)
            request.computed = cached
            request.target = total
            self._enter_running(request, cached, seen_s)
            self._grant(batch, request, tokens)
            budget -= tokens

    def head_gains(self) -> bool:
        """Whether decoding alone may let the blocked head of the queue in.

        It cannot, since it only takes blocks away, unless it generates what the head would hit.
        """
        return bool(self.waiting) and any(node.decoding for node in self.waiting[0].nodes)

    # -- parts of it ----------------------------------------------------------------------------

    def _blocks_for(self, request: Request, tokens: int) -> int:
        held = request.hashed + request.unhashed
        return -(-(request.computed + tokens) // self.config.block_size) - held

    def _grant(self, batch: Batch, request: Request, tokens: int) -> None:
        needed = self._blocks_for(request, tokens)
        self.pool.take(needed)
        request.unhashed += needed
        batch.chunks.append((request, tokens, request.computed))
        request.computed += tokens
        self._settle(request.nodes, request.order)
        self.pool.identify(request, request.computed // self.config.block_size)

    def _enter_running(self, request: Request, cached: int, seen_s: float) -> None:
        request.state = State.PREFILLING
        self._admissions += 1
        request.order = self._admissions
        self.running[request] = None
        self.prefilling[request] = None
        if request.cached_tokens is not None:
            return
        request.cached_tokens = cached
        request.scheduled_s = seen_s
        self.counters.prompt_admitted += request.prompt_tokens
        if self.config.enable_prefix_caching:
            self.counters.prefix_queries += request.target
            self.counters.prefix_hits += cached

    def _make_room(self, needed: int, request: Request, batch: Batch, now_s: float) -> bool:
        """Preempt from the tail until `needed` blocks are free; False if `request` went too."""
        while needed > self.pool.free:
            victim, _ = self.running.popitem()
            batch.preempted = True
            self._preempt(victim, request.order, now_s)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, scheduled: int, now_s: float) -> None:
        """Free its blocks and put it first in the waiting queue; it recomputes what is lost.

        A request in state LAST keeps it: its final token is delivered while it waits.
        """
        self.counters.preemptions += 1
        request.preemptions += 1
        if request.state is State.PREFILLING:
            del self.prefilling[request]
        else:
            self._leave_decoding(request, scheduled)
            request.last_token_s = now_s
        self.pool.release(request)
        request.computed = 0
        if request.state is not State.LAST:
            request.state = State.WAITING
        self.waiting.appendleft(request)

    def _leave_decoding(self, request: Request, scheduled: int) -> None:
        """Make a decoder's computed tokens explicit; enter what vLLM has hashed by now.

        With asynchronous scheduling the token computed last is not known yet, so a block it
        filled has no hash.
        """
        if request.state is State.DECODING:
            self._stop(request, scheduled)
        known = request.computed
        if self.config.async_scheduling and not request.fresh:
            known -= 1
        self.pool.identify(request, known // self.config.block_size)

    def _stop(self, request: Request, scheduled: int) -> None:
        """Take a request out of the decoders, after what others wrote to the same nodes."""
        self._settle((node for node in request.writes if len(node.decoding) > 1), scheduled)
        self.decoders.stop(request)

    def _settle(self, nodes: Iterable[Node], scheduled: int) -> None:
        """Enter the blocks that decoders have filled in some nodes, the furthest decoder first."""
        decoders, size = self.decoders, self.config.block_size
        for node in nodes:
            if not node.decoding:
                continue
            for request in sorted(node.decoding, key=lambda r: (-decoders.computed(r), r.order)):
                self.pool.identify(request, decoders.hashable(request, scheduled) // size)

    # -- after a step ---------------------------------------------------------------------------

    def step_done(self, batch: Batch, steps: int) -> list[Request]:
        """Account for `steps` executed steps; returns who has a token to deliver beyond decoders.

        These are the requests whose prefill ended and those with their last token, in running
        order; the latter are in state LAST.
        """
        self.pool.take(self.decoders.blocks_needed(steps) - self.taken_ahead)
        self.taken_ahead = 0
        self.decoders.advance(steps)
        outputs = self.decoders.ended()
        for request in outputs:
            self._leave_decoding(request, NONE)
            request.state = State.LAST
        for request, _, _ in batch.chunks:
            if request.state is State.PREFILLING and request.computed == request.target:
                del self.prefilling[request]
                request.produced += 1
                if request.produced >= request.output_tokens:
                    request.state = State.LAST
                    request.fresh = True
                else:
                    self.decoders.start(request)
                outputs.append(request)
        if len(outputs) > 1:
            outputs.sort(key=lambda request: request.order)
        return outputs

    def finish(self, request: Request) -> None:
        """Deliver the last token: free the blocks, leave the queues."""
        if request in self.running:
            del self.running[request]
            self.pool.identify(request, request.computed // self.config.block_size)
            self.pool.release(request)
        else:
            self.waiting.remove(request)
        request.state = State.FINISHED
        self._forget(request)
        self.counters.finished_requests += 1

    def abort(self, request: Request) -> None:
        """Remove a request wherever it stands; a token of the step under way is lost."""
        if request in self.running:
            del self.running[request]
            self.prefilling.pop(request, None)
            if request.state is State.DECODING:
                ahead = int(self.taken_ahead > 0 and self.decoders.needs_block(request))
                self.taken_ahead -= ahead
                self._stop(request, ALL if self.config.async_scheduling else NONE)
                self.pool.identify(request, request.computed // self.config.block_size)
                request.unhashed += ahead
            self.pool.release(request)
        elif request.state is not State.NEW:
            self.waiting.remove(request)
        request.state = State.ABORTED
        request.last_token_s = None
        self._forget(request)
        self.counters.aborted_requests += 1

    @staticmethod
    def _forget(request: Request) -> None:
        for node in request.nodes:
            node.users.pop(request, None)
