"""Decoding requests, advanced together without touching any of them."""

import heapq

from agentload.sim.core.request import Request, State


class Decoders:
    """The set of requests that compute one token each per step.

    `tick` counts the steps they took. `context` is the sum of tokens each will have in its KV
    cache after the next step (K of the step cost). Who needs a new block when is kept as a count
    per tick modulo the block size, who ends when in a heap.
    """

    def __init__(self, block_size: int, *, ahead: bool) -> None:
        self.tick = 0
        self.count = 0
        self.context = 0
        self._block_size = block_size
        self._ahead = ahead  # batches are formed before the tokens of the step under way are known
        self._needs = [0] * block_size
        self._ends: list[tuple[int, int, Request, int]] = []
        self._serial = 0

    def start(self, request: Request) -> None:
        """Add a request whose prompt (and sampled tokens but the last) are computed."""
        request.state = State.DECODING
        request.decoders = self
        request.start_context = request.computed
        request.start_tick = self.tick
        request.epoch += 1
        self.count += 1
        self.context += request.computed + 1
        self._needs[(self.tick - request.computed) % self._block_size] += 1
        self._serial += 1
        end = self.tick + request.output_tokens - request.produced
        heapq.heappush(self._ends, (end, self._serial, request, request.epoch))
        request.nodes[-1].decoding.append(request)
        request.writes.append(request.nodes[-1])

    def stop(self, request: Request) -> None:
        """Take a request out; its `computed`, `produced` and `unhashed` become explicit."""
        ticks = self.tick - request.start_tick
        request.computed = self.computed(request)
        request.produced += ticks
        request.fresh = ticks == 0
        request.unhashed = -(-request.computed // self._block_size) - request.hashed
        request.epoch += 1
        self.count -= 1
        self.context -= request.computed + 1
        self._needs[(request.start_tick - request.start_context) % self._block_size] -= 1
        for node in request.writes:
            node.decoding.remove(request)
        request.writes.clear()

    def computed(self, request: Request) -> int:
        """Tokens of a decoding request whose KV is computed."""
        return request.start_context + self.tick - request.start_tick

    def hashable(self, request: Request, scheduled: int) -> int:
        """Tokens of a decoding request whose full blocks have a hash in vLLM by now.

        A request below place `scheduled` in the running list was scheduled by the pass under way,
        which counts the token to be computed. With asynchronous scheduling it is one less: the
        latest token is not known, unless a prefill ended with it.
        """
        computed = self.computed(request)
        if not self._ahead:
            return computed + int(request.order < scheduled)
        if self.tick == request.start_tick or request.order < scheduled:
            return computed
        return computed - 1

    def advance(self, steps: int) -> None:
        """All of them took `steps` steps."""
        self.tick += steps
        self.context += steps * self.count

    def blocks_needed(self, steps: int = 1) -> int:
        """New blocks for the next `steps` steps."""
        if steps == 1:
            return self._needs[self.tick % self._block_size]
        full, rest = divmod(steps, self._block_size)
        needs, tick = self._needs, self.tick
        return full * self.count + sum(needs[(tick + i) % self._block_size] for i in range(rest))

    def needs_block(self, request: Request) -> bool:
        """Whether the next step of this request needs a new block."""
        return self.computed(request) % self._block_size == 0

    def steps_to_next_end(self) -> int:
        """Steps until the next of them has its last token; there must be one."""
        ends = self._ends
        while ends[0][2].epoch != ends[0][3]:
            heapq.heappop(ends)
        return ends[0][0] - self.tick

    def ended(self) -> list[Request]:
        """Those whose last token came with the latest step; each is to be stopped."""
        found = []
        ends = self._ends
        while ends and ends[0][0] <= self.tick:
            _, _, request, epoch = heapq.heappop(ends)
            if request.epoch == epoch:
                found.append(request)
        return found
