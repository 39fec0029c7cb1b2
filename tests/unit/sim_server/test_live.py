"""The core on a wall clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from agentload.clock import NS_PER_S, VirtualClock
from agentload.sim.core import EngineConfig, Frontend, Node, Request, StepCost
from agentload.sim.server.live import LiveEngine, Sink
from agentload.sim.server.prefix import Path, PrefixTree
from agentload.sim.server.tokens import BLOCK_BYTES, BYTES_PER_TOKEN

STEP_S = 0.010
COST = StepCost(STEP_S, 0, 0, 0, 0)


@dataclass
class ManualTimer:
    call: Callable[[], None]
    clock: VirtualClock
    at_s: float | None = None

    def set(self, wait_s: float) -> None:
        self.at_s = self.clock.at_ns / NS_PER_S + wait_s

    def cancel(self) -> None:
        self.at_s = None


@dataclass(eq=False)
class Reader:
    request: Request
    ready_s: float = 0.0
    generated: int = 0
    last_token_s: float = 0.0
    limit: int = 0
    finish_reason: str = "length"
    seen: list[int] = field(default_factory=list)
    refused: bool = False
    path: Callable[[], Path] | None = None

    def place(self) -> None:
        if self.path is not None:
            self.request.place(self.path())

    def deliver(self) -> None:
        self.seen.append(self.generated)

    def refuse(self) -> None:
        self.refused = True


@dataclass
class Told:
    gaps_s: Counter[float] = field(default_factory=Counter)
    firsts: int = 0
    done: list[Sink] = field(default_factory=list)
    late: list[tuple[float, int]] = field(default_factory=list)

    def first_token(self, request: Request, at_s: float) -> None:
        assert request.first_token_s == at_s

    def step(self, gaps_s: Counter[float], first_tokens: list[Request]) -> None:
        self.gaps_s += gaps_s
        self.firsts += len(first_tokens)

    def finished(self, sink: Sink) -> None:
        self.done.append(sink)

    def lateness(self, late_s: float, chunks: int) -> None:
        self.late.append((late_s, chunks))


class Bench:
    """A live engine that takes 3 ms to tokenize and 10 ms for each step."""

    def __init__(self, speed: float = 1.0, most_waiting: int | None = None, seats: int = 8) -> None:
        self.clock = VirtualClock()
        self.told = Told()
        self.timers: list[ManualTimer] = []
        config = EngineConfig(seats, 2048, 1000, max_model_len=4096, async_scheduling=False)
        self.live = LiveEngine(
            config, COST, Frontend(0.003, 0), self.told, self.told.lateness, self.clock,
            speed=speed, most_waiting=most_waiting, make_timer=self.timer,
        )  # fmt: skip
        self.serial = 0

    def timer(self, call: Callable[[], None]) -> ManualTimer:
        self.timers.append(ManualTimer(call, self.clock))
        return self.timers[0]

    def send_text(self, tree: PrefixTree, prompt: bytes) -> Reader:
        self.serial += 1
        tokens = len(prompt) // BYTES_PER_TOKEN
        reader = Reader(Request(self.serial, [(Node(), tokens)], 2, self.live.now_s()))
        reader.path = partial(tree.place, prompt, b"")
        self.live.submit([reader], tokens, token_ids=False)
        return reader

    def send(self, output: int) -> Reader:
        self.serial += 1
        reader = Reader(Request(self.serial, [(Node(), 50)], output, self.live.now_s()))
        self.live.submit([reader], 50, token_ids=False)
        return reader

    def wake(self, late_s: float = 0.0) -> None:
        """Move to the time of the timer, or past it, and let it ring."""
        [timer] = self.timers
        assert timer.at_s is not None
        wait_s = timer.at_s + late_s - self.clock.at_ns / NS_PER_S
        self.clock.advance_s(max(0.0, wait_s) + 1e-9)
        timer.call()

    def run(self) -> None:
        while self.timers[0].at_s is not None:
            self.wake()


def test_a_prompt_that_comes_during_the_tokenizing_of_another_costs_it_nothing() -> None:
    """The second cuts the first's blocks where they part; both keep all they have computed."""
    bench = Bench()
    tree = PrefixTree(bench.live.split_node, 1000)
    shared = bytes(range(64)) * BLOCK_BYTES
    first, second = shared + b"a" * 64 * BYTES_PER_TOKEN, shared + b"b" * 64 * BYTES_PER_TOKEN
    bench.send_text(tree, first)
    bench.send_text(tree, second)
    bench.run()
    for prompt in (first, second):
        again = bench.send_text(tree, prompt + b"c" * 16 * BYTES_PER_TOKEN)
        bench.run()
        assert again.request.cached_tokens == len(prompt) // BYTES_PER_TOKEN


def test_each_step_is_delivered_when_it_ends() -> None:
    bench = Bench()
    reader = bench.send(4)
    bench.run()
    assert reader.seen == [1, 2, 3, 4]
    assert reader.request.first_token_s == pytest.approx(0.013)
    assert reader.last_token_s == pytest.approx(0.043)
    assert bench.clock.at_ns / NS_PER_S == pytest.approx(0.043)
    assert (bench.told.firsts, bench.told.gaps_s.total(), bench.told.done) == (1, 3, [reader])


def test_a_late_wake_merges_chunks_and_keeps_the_simulated_times() -> None:
    bench = Bench()
    reader = bench.send(6)
    bench.wake()  # tokenized
    bench.wake()  # first token, at 13 ms
    bench.wake(late_s=0.025)  # due at 23 ms, comes at 48: three steps have ended
    assert reader.seen == [1, 4]
    assert reader.last_token_s == pytest.approx(0.043)
    late_s, chunks = bench.told.late[-1]
    assert (late_s, chunks) == (pytest.approx(0.025), 1)
    bench.run()
    assert reader.last_token_s == pytest.approx(0.063)
    assert set(map(round, (gap * 1e6 for gap in bench.told.gaps_s))) == {10_000}


def test_speed_divides_wall_time_and_nothing_else() -> None:
    bench = Bench(speed=10.0)
    reader = bench.send(4)
    bench.run()
    assert reader.last_token_s == pytest.approx(0.043)
    assert bench.clock.at_ns / NS_PER_S == pytest.approx(0.0043)
    assert bench.live.wall_ns(reader.last_token_s) == pytest.approx(0.0043 * NS_PER_S, abs=2)


def test_a_client_that_leaves_the_tokenizer_never_reaches_the_engine() -> None:
    bench = Bench()
    reader = bench.send(4)
    bench.live.abort(reader)
    bench.run()
    assert reader.seen == []
    assert bench.live.engine.counters.aborted_requests == 0
    assert bench.live.engine.counters.steps == 0


def test_a_client_that_leaves_while_decoding_gets_nothing_more() -> None:
    bench = Bench()
    reader, other = bench.send(50), bench.send(5)
    for _ in range(4):
        bench.wake()
    seen = list(reader.seen)
    bench.live.abort(reader)
    bench.run()
    assert reader.seen == seen
    assert other.generated == 5
    assert bench.live.engine.counters.aborted_requests == 1


def test_a_queue_that_is_full_refuses_when_the_request_gets_there() -> None:
    bench = Bench(most_waiting=1, seats=1)
    readers = [bench.send(9) for _ in range(3)]
    bench.run()
    assert [reader.refused for reader in readers] == [False, False, True]
    assert [reader.generated for reader in readers] == [9, 9, 0]


def test_nothing_to_do_sets_no_timer() -> None:
    bench = Bench()
    bench.send(1)
    bench.run()
    assert bench.timers[0].at_s is None


def test_requests_that_come_together_share_their_first_step() -> None:
    bench = Bench()
    readers = [Reader(Request(index, [(Node(), 50)], 2, 0.0)) for index in range(3)]
    bench.live.submit(readers, 50, token_ids=False)
    bench.run()
    assert [round(reader.request.first_token_s or 0, 6) for reader in readers] == [0.013] * 3
    assert bench.told.firsts == 3
