"""The scheduler model written out literally: one object per block, one pass per step.

It shares no code with the fast core but the settings and the step cost. Every rule is written as
vLLM 0.32 applies it, block by block, so that it can be checked by reading; it costs O(prompt) per
admission and O(running) per step. Batches are queued the way the engine core does it: with
asynchronous scheduling two are in flight, and the next is formed when the older one starts.
"""

from collections import Counter
from typing import Any

from agentload.sim.core import EngineConfig, StepCost
from tests.sim.workloads import INFINITY, Clients, Workload, engine_config

Key = tuple[str, int]


class Block:
    """A physical block: who holds it, what it holds."""

    def __init__(self) -> None:
        self.references = 0
        self.key: tuple[Key, ...] | None = None


class Pool:
    """Free queue (front is reused next) and the map from contents to blocks, oldest entry first."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.queue = [Block() for _ in range(config.usable_blocks)]
        self.cached: dict[tuple[Key, ...], list[Block]] = {}

    def get_new(self, count: int) -> list[Block]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            if block.key is not None:
                self.cached[block.key].remove(block)
                block.key = None
            block.references = 1
        return taken

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.references == 0:
                self.queue.remove(block)
            block.references += 1

    def free(self, blocks: list[Block]) -> None:
        """`blocks` in the order of the sequence; its end is reused first."""
        released = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                released.append(block)
        if self.config.unhashed_blocks_first or not self.config.enable_prefix_caching:
            blank = [block for block in released if block.key is None]
            self.queue = blank + self.queue + [b for b in released if b.key is not None]
        else:
            self.queue = self.queue + released

    def enter(self, block: Block, key: tuple[Key, ...]) -> None:
        block.key = key
        self.cached.setdefault(key, []).append(block)

    def find(self, key: tuple[Key, ...]) -> Block | None:
        copies = self.cached.get(key)
        return copies[0] if copies else None


class Sequence:
    """A request in vLLM's terms."""

    def __init__(self, number: int, turn: dict[str, Any], size: int) -> None:
        self.number = number
        self.prompt = sum(tokens for _, tokens in turn["path"])
        self.output = turn["output"]
        self.size = size
        self.path = turn["path"]
        self.computed = 0
        self.placeholders = 0
        self.generated = 0
        self.blocks: list[Block] = []
        self.entered = 0
        self.preemptions = 0
        self.cached: int | None = None
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.state = "waiting"

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    def key(self, index: int) -> tuple[Key, ...]:
        """Contents of a block and of all before it: the path down to it, then its place."""
        above: list[Key] = []
        left = index
        for name, tokens in self.path[:-1]:
            if left < tokens // self.size:
                return (*above, (name, left))
            above.append((name, tokens // self.size))
            left -= tokens // self.size
        return (*above, (self.path[-1][0], left))


class Reference:
    """vLLM's scheduler, its engine core's loop, and the clock."""

    def __init__(self, workload: Workload) -> None:
        self.config = engine_config(workload["cfg"])
        self.cost = StepCost(**workload["cost"])
        self.clients = Clients(workload)
        self.pool = Pool(self.config)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.sequences: dict[int, Sequence] = {}
        self.count: Counter[str] = Counter()
        self._run()

    def rows(self) -> list[list[Any]]:
        """As `FastRun.rows`."""
        return [
            [n, s.first_s, s.last_s, s.cached, s.preemptions]
            for n, s in sorted(self.sequences.items())
        ]

    # -- the engine core's loop -----------------------------------------------------------------

    def _run(self) -> None:
        now_s = 0.0
        flight: list[tuple[list[tuple[Sequence, int, bool]], float]] = []
        depth = 2 if self.config.async_scheduling else 1
        while True:
            self._clients_act(now_s)
            work = self._schedule()
            if work:
                flight.append((work, self._duration(work)))
                if len(flight) < depth:
                    continue
            elif not flight:
                if self.running or self.waiting:
                    continue
                if self.clients.next_s() == INFINITY:
                    return
                now_s = max(now_s, self.clients.next_s())
                continue
            work, took_s = flight.pop(0)
            now_s += took_s
            while self.clients.next_abort_s() <= now_s:
                self._abort_next()
            self._update(work, now_s)

    def _clients_act(self, now_s: float) -> None:
        while self.clients.next_s() <= now_s:
            if self.clients.next_abort_s() == self.clients.next_s():
                self._abort_next()
                continue
            _, number, turn = self.clients.pop()
            assert turn is not None
            sequence = Sequence(number, turn, self.config.block_size)
            self.sequences[number] = sequence
            self.waiting.append(sequence)

    def _abort_next(self) -> None:
        at_s, number = self.clients.pop_abort()
        sequence = self.sequences[number]
        if sequence.state == "finished":
            return
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.free(sequence.blocks)
        sequence.state = "aborted"
        sequence.last_s = None
        self.count["aborted"] += 1
        self.clients.ended(number, at_s)

    def _duration(self, work: list[tuple[Sequence, int, bool]]) -> float:
        prefill = decodes = context = 0
        attention = 0.0
        for sequence, tokens, _ in work:
            start = sequence.computed - tokens
            if tokens == 1:
                decodes += 1
                context += start + 1
            else:
                prefill += tokens
                attention += tokens * (start + 0.5 * tokens)
        return self.cost.step_s(prefill, decodes, context, attention)

    def _update(self, work: list[tuple[Sequence, int, bool]], now_s: float) -> None:
        self.count["steps"] += 1
        finished = []
        for sequence, _, samples in work:
            if sequence.state == "aborted" or not samples:
                continue
            sequence.generated += 1
            self.count["generated"] += 1
            if sequence.first_s is None:
                sequence.first_s = now_s
            sequence.last_s = now_s
            if sequence in self.running and self.config.async_scheduling:
                sequence.placeholders -= 1
                self._enter(sequence, sequence.computed - sequence.placeholders)
            if sequence.generated == sequence.output:
                self.pool.free(sequence.blocks)
                (self.running if sequence in self.running else self.waiting).remove(sequence)
                sequence.state = "finished"
                finished.append(sequence)
        for sequence in finished:
            self.clients.ended(sequence.number, now_s)

    # -- one pass -------------------------------------------------------------------------------

    def _schedule(self) -> list[tuple[Sequence, int, bool]]:
        """The batch as (sequence, tokens, whether it samples a token)."""
        granted: list[tuple[Sequence, int]] = []
        budget = self.config.max_num_batched_tokens
        threshold = self.config.long_prefill_token_threshold or budget
        if self.config.threshold_needs_company and len(self.running) + len(self.waiting) <= 1:
            threshold = budget
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            if sequence.placeholders and sequence.computed + 1 >= sequence.prompt + sequence.output:
                index += 1  # its last token is on the way
                continue
            wanted = sequence.tokens + sequence.placeholders - sequence.computed
            tokens = min(wanted, threshold, budget)
            while not self._allocate(sequence, tokens, [], sequence.computed + tokens):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            if sequence.state == "waiting":
                break
            granted.append((sequence, tokens))
            budget -= tokens
            index += 1
        while not preempted and self.waiting and budget > 0:
            admitted = self._admit(budget, threshold)
            if admitted is None:
                break
            granted.append(admitted)
            budget -= admitted[1]
        return [self._start(sequence, tokens) for sequence, tokens in granted]

    def _admit(self, budget: int, threshold: int) -> tuple[Sequence, int] | None:
        sequence = self.waiting[0]
        if len(self.running) >= self.config.max_num_seqs:
            return None
        hit: list[Block] = []
        if self.config.enable_prefix_caching:
            for index in range((sequence.tokens - 1) // self.config.block_size):
                block = self.pool.find(sequence.key(index))
                if block is None:
                    break
                hit.append(block)
        cached = len(hit) * self.config.block_size
        tokens = min(sequence.tokens - cached, threshold)
        if not self.config.chunks_prefills and tokens > budget:
            return None
        tokens = min(tokens, budget)
        must_fit = sequence.tokens if self.config.reserve_full_isl else cached + tokens
        sequence.computed = cached
        if not self._allocate(sequence, tokens, hit, must_fit):
            sequence.computed = 0
            return None
        if sequence.cached is None:
            sequence.cached = cached
        self.waiting.pop(0)
        self.running.append(sequence)
        sequence.state = "running"
        return sequence, tokens

    def _allocate(self, sequence: Sequence, tokens: int, hit: list[Block], must_fit: int) -> bool:
        held = len(sequence.blocks) + len(hit)
        revived = sum(block.references == 0 for block in hit)
        size = self.config.block_size
        if max(0, -(-must_fit // size) - held) + revived > len(self.pool.queue):
            return False
        self.pool.touch(hit)
        sequence.entered += len(hit)
        needed = max(0, -(-(sequence.computed + tokens) // size) - held)
        sequence.blocks += hit + self.pool.get_new(needed)
        self._enter(sequence, min(sequence.computed + tokens, sequence.tokens))
        return True

    def _enter(self, sequence: Sequence, tokens: int) -> None:
        """Give full blocks of known tokens their identity."""
        if not self.config.enable_prefix_caching:
            return
        while sequence.entered < tokens // self.config.block_size:
            block = sequence.blocks[sequence.entered]
            self.pool.enter(block, sequence.key(sequence.entered))
            sequence.entered += 1

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks, sequence.entered = [], 0
        sequence.computed = sequence.placeholders = 0
        sequence.preemptions += 1
        sequence.state = "waiting"
        self.count["preemptions"] += 1
        self.waiting.insert(0, sequence)

    def _start(self, sequence: Sequence, tokens: int) -> tuple[Sequence, int, bool]:
        sequence.computed += tokens
        samples = sequence.computed >= sequence.tokens + sequence.placeholders
        if samples and self.config.async_scheduling:
            sequence.placeholders += 1
        return sequence, tokens, samples
