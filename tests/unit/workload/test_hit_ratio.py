"""The planned hit ratio against a block cache that never evicts, with the simulator's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentload.scenario import Scenario, load
from agentload.sim.server.tokens import BYTES_PER_TOKEN, encode_chat, encode_text
from agentload.workload.calibration import calibrate
from agentload.workload.content import Corpus
from agentload.workload.plan import hit_ratio
from agentload.workload.session import Session
from agentload.workload.turn import Turn

SCENARIOS = Path(__file__).parents[3] / "scenarios"
BLOCK_BYTES = 16 * BYTES_PER_TOKEN


class EndlessCache:
    """Every block of every prompt, found by the hash of all bytes up to its end."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def send(self, words: bytes) -> int:
        """The prompt's tokens; vLLM always computes the last one."""
        tokens, chain, hit, hitting = len(words) // BYTES_PER_TOKEN, 0, 0, True
        for at in range(0, len(words) - len(words) % BLOCK_BYTES, BLOCK_BYTES):
            chain = hash((chain, words[at : at + BLOCK_BYTES]))
            hitting = hitting and chain in self._blocks and at + BLOCK_BYTES < len(words)
            hit += 16 * hitting
            self._blocks.add(chain)
        self.prompt_tokens += tokens
        self.cached_tokens += hit
        return tokens


def text(pieces: list[bytes]) -> str:
    return str(orjson.loads(b'"' + b"".join(pieces) + b'"'))


def play(
    scenario: Scenario,
    corpus: Corpus,
    new_session: Callable[..., Session],
    target: Any,
    sessions: int,
    rounds: int,
) -> tuple[list[Turn], EndlessCache]:
    """Sessions turn by turn beside each other, children right after the turn that spawned them."""
    cache = EndlessCache()
    turns: list[Turn] = []

    def step(t: Any) -> bool:
        turn = t.session.next_turn()
        if turn is None:
            return False
        t.receive(turn)
        words = encode_chat([{"role": r, "content": c} for r, c in t.history], None)
        t.reported[-1] = cache.send(words)
        turns.append(turn)
        t.answer(turn)
        for plan in turn.spawns:
            child = target(t.session.child(plan), len)
            while step(child):
                pass
        return True

    ratios = calibrate(scenario, corpus, None, lambda pieces: len(encode_text(text(pieces))) // 4)
    live = [target(new_session(scenario, i, chars_per_token=ratios), len) for i in range(sessions)]
    for _ in range(rounds):
        live = [t for t in live if step(t)]
    return turns, cache


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", ["none", "system_tail", "tools_permuted", "head"])
def test_prefix_breaker_is_block_arithmetic_within_a_point(
    corpus: Corpus, new_session: Callable[..., Session], target: Any, dynamic: str
) -> None:
    overrides = {"prefix.dynamic": dynamic, "context_scale": 0.25}
    scenario = load(SCENARIOS / "prefix-breaker.yaml", overrides)
    turns, cache = play(scenario, corpus, new_session, target, 6, 8)
    planned = hit_ratio(turns, 16)
    assert cache.prompt_tokens > 1_000_000
    assert planned == pytest.approx(cache.cached_tokens / cache.prompt_tokens, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steady-append", "interactive-mix", "fanout", "compaction-wave"])
def test_the_planned_hit_ratio_is_what_an_endless_cache_gives(
    corpus: Corpus, new_session: Callable[..., Session], target: Any, name: str
) -> None:
    scenario = load(SCENARIOS / f"{name}.yaml", {"context_scale": 0.25})
    turns, cache = play(scenario, corpus, new_session, target, 8, 20)
    planned = hit_ratio(turns, 16)
    assert {"interactive-mix": "rebuild", "fanout": "child", "compaction-wave": "rebuild"}.get(
        name, "tool"
    ) in {turn.turn_class for turn in turns}
    assert planned == pytest.approx(cache.cached_tokens / cache.prompt_tokens, abs=0.01)
