"""Prompts placed by their bytes, against the definition of a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload.sim.core import Engine, EngineConfig, Request, StepCost
from agentload.sim.server.prefix import PrefixTree

BLOCK = 16
COST = StepCost(0.01, 1e-5, 1e-5, 1e-9, 1e-11)


@dataclass
class Turn:
    """A prompt and an answer, in tokens; the salt it is sent with."""

    prompt: list[int]
    answer: list[int]
    salt: str | None = None


def words(ids: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "big") for token in ids)


@dataclass
class Server:
    blocks: int = 4000
    serial: int = 0
    engine: Engine = field(init=False)
    tree: PrefixTree = field(init=False)

    def __post_init__(self) -> None:
        config = EngineConfig(8, 64, self.blocks, max_model_len=4096)
        self.engine = Engine(config, COST)
        self.tree = PrefixTree(self.engine.split_node, self.blocks)

    def send(self, turn: Turn, at_s: float | None = None) -> Request:
        path = self.tree.place(words(turn.prompt), words(turn.answer), turn.salt)
        self.serial += 1
        at_s = self.engine.now_s if at_s is None else at_s
        request = Request(self.serial, path, len(turn.answer), at_s)
        self.engine.add(request, at_s)
        return request

    def finish(self) -> None:
        while (wake_s := self.engine.next_wake_s()) is not None:
            self.engine.run_until(wake_s)

    def run(self, turn: Turn) -> int:
        """Cached tokens of a turn served alone."""
        request = self.send(turn)
        self.finish()
        assert request.finished
        assert request.cached_tokens is not None
        return request.cached_tokens


def expected(turn: Turn, served: list[Turn]) -> int:
    """Whole blocks that the prompt begins with in common with what was computed before.

    The last generated token is never computed; at least one prompt token is.
    """
    best = 0
    for other in served:
        if other.salt != turn.salt:
            continue
        known = (other.prompt + other.answer)[:-1]
        common = 0
        while common < min(len(known), len(turn.prompt)) and known[common] == turn.prompt[common]:
            common += 1
        best = max(best, min(common, len(turn.prompt) - 1) // BLOCK)
    return best * BLOCK


# Few tokens and repeats of whole runs, so that prompts share long beginnings.
runs = st.sampled_from([[1] * 16, [2] * 16, [1, 2] * 8, [3] * 5, [1] * 21, [7], [2] * 48])
prompts = st.lists(runs, min_size=1, max_size=6).map(lambda parts: list(chain.from_iterable(parts)))
turns = st.builds(
    Turn,
    prompts,
    st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=40),
    st.sampled_from([None, "salt"]),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(turns, min_size=2, max_size=8))
def test_a_turn_finds_what_earlier_turns_computed(sent: list[Turn]) -> None:
    server = Server()
    for index, turn in enumerate(sent):
        assert server.run(turn) == expected(turn, sent[:index])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(turns, min_size=2, max_size=5), turns)
def test_turns_at_once_leave_the_same_cache_as_turns_in_a_row(sent: list[Turn], last: Turn) -> None:
    server = Server()
    requests = [server.send(turn) for turn in sent]
    server.finish()
    assert all(request.finished for request in requests)
    assert server.engine.kv_usage == 0
    assert server.run(last) == expected(last, sent)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(turns, min_size=2, max_size=6), st.data())
def test_aborted_turns_leave_a_sound_tree(sent: list[Turn], data: st.DataObject) -> None:
    server = Server()
    requests = [server.send(turn) for turn in sent]
    for request in requests:
        wake_s = server.engine.next_wake_s()
        if wake_s is not None:
            server.engine.run_until(wake_s)
        if data.draw(st.booleans()):
            server.engine.abort(request, server.engine.now_s)
    server.finish()
    assert server.engine.kv_usage == 0
    turn = Turn([9] * 40, [1] * 8)
    assert server.run(turn) == 0
    assert server.run(turn) == 32


def test_a_history_finds_its_own_answers() -> None:
    server, history = Server(), [5] * 40
    for index in range(6):
        answer = [10 + index] * 24
        cached = server.run(Turn(history, answer))
        assert cached == (0 if index == 0 else (len(history) - 9) // BLOCK * BLOCK)
        history = history + answer + [100 + index] * 8


def test_one_changed_token_misses_from_its_block_on() -> None:
    server, prompt = Server(), list(range(1000, 1320))
    server.run(Turn(prompt, [1]))
    changed = [*prompt[:100], 7, *prompt[101:]]
    assert server.run(Turn(changed, [1])) == 96  # blocks 0 to 5; token 100 is in block 6


def test_a_branch_is_not_found_below_another_one() -> None:
    """X Y and X Z are known; of X Y Z only X Y is, though Z stands below X."""
    server = Server()
    x, y, z = [1] * 32, [2] * 32, [3] * 32
    for known in (x + y, x + z):
        server.run(Turn([*known, 9], [1]))
    assert server.run(Turn(x + y + z, [1])) == 64


@pytest.mark.slow
def test_memory_stays_in_proportion_to_the_cache() -> None:
    """13 MB of prompts through a cache of 0.26 MB; a tree below 4 MB is left alone."""
    server = Server(blocks=4000)
    rest = words(list(range(4000)))
    for index in range(800):
        path = server.tree.place(words([index]) + rest, b"", None)
        server.engine.add(Request(index, path, 1, server.engine.now_s), server.engine.now_s)
        server.finish()
    assert server.tree.label_bytes < 1.5 * (1 << 22)
    # What was pruned is gone from the cache as well, what is cached is still found.
    assert server.run(Turn([799, *range(4000)], [1])) == 4000
    assert server.run(Turn([0, *range(4000)], [1])) == 0
