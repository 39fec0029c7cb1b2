"""A small scenario, one corpus, and a target that counts tokens in its own way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from agentload.scenario import Scenario
from agentload.workload.calibration import CharsPerToken
from agentload.workload.content import Corpus
from agentload.workload.session import Session
from agentload.workload.turn import Message, Turn

SMALL: dict[str, Any] = {
    "name": "small",
    "description": "Small sessions for tests.",
    "seed": 7,
    "chars_per_token": 4.0,
    "window": {"tokens": 20_000},
    "prefix": {"tools_tokens": 1200, "system_tokens": 300},
    "start": {
        "mix": {"warm": 1.0},
        "warm_tokens": {"dist": "uniform", "min": 4000, "max": 6000},
        "message_chars": {
            "dist": "lognormal", "median": 1500, "sigma": 0.5, "min": 100, "max": 4000,
        },
    },
    "turns": {
        "append_chars": {
            "dist": "lognormal", "median": 800, "sigma": 1.0, "min": 16, "max": 9000,
        },
        "output_tokens": {"dist": "lognormal", "median": 60, "sigma": 0.7, "min": 8, "max": 400},
    },
    "waits": {"tool": {"dist": "uniform", "min": 0.1, "max": 2.0}},
    "content": {
        "tool_results": {"view": 3, "grep": 1, "log": 1, "diff": 1, "code": 1, "listing": 1},
        "answers": {"prose": 1, "code": 1},
        "user_text": {"prose": 1},
        "non_ascii_share": 0.02,
    },
    "stages": [{"name": "one", "duration_s": 60, "users": 4}],
}  # fmt: skip


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with the keys of each section of `change` in the place of its own."""
    out = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = {**out[key], **value} if both else value
    return out


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return Corpus()


@pytest.fixture(scope="session")
def make_scenario() -> Callable[..., Scenario]:
    def make(**sections: Any) -> Scenario:
        return Scenario.model_validate(merged(SMALL, sections))

    return make


def plain(message: Message) -> str:
    """The text of a message; fails when a piece was cut inside an escape or a character."""
    joined = b"".join(bytes(piece) for piece in message.pieces)
    for piece in message.pieces:
        bytes(piece).decode("utf-8")
    text = orjson.loads(b'"' + joined + b'"')
    assert isinstance(text, str)
    return text


def word_tokens(text: str) -> int:
    """A tokenizer unlike any real one: up to six letters, or one other character, each."""
    return len(re.findall(r"[A-Za-z]{1,6}|\s+|.", text))


class Target:
    """Plays the server for one session: keeps the history, counts, checks what turns promise."""

    def __init__(
        self, session: Session, count: Callable[[str], int] = word_tokens, overhead: int = 3
    ) -> None:
        self.session = session
        self.history: list[tuple[str, str]] = []
        self.prompts: list[str] = []
        self.turns: list[Turn] = []
        self.reported: list[int] = []
        self._count = count
        self._overhead = overhead
        self._known: dict[str, int] = {}

    def tokens(self, history: list[tuple[str, str]]) -> int:
        total = 3
        for _, text in history:
            if text not in self._known:
                self._known[text] = self._count(text)
            total += self._known[text] + self._overhead
        return total

    def receive(self, turn: Turn) -> int:
        """Take a turn in; the prompt's tokens."""
        assert turn.turn_index == len(self.turns)
        assert 0 <= turn.keep_messages <= len(self.history)
        del self.history[turn.keep_messages :]
        self.history += [(m.role, plain(m)) for m in turn.append]
        roles = [role for role, _ in self.history]
        assert roles == ["system"] + ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"]
        assert turn.wait_s >= 0
        assert turn.output_tokens >= 1
        assert 0 <= turn.planned_prefix_tokens <= turn.planned_prompt_tokens
        self.turns.append(turn)
        self.prompts.append("\x00".join(f"{role}\x01{text}" for role, text in self.history))
        self.reported.append(self.tokens(self.history))
        return self.reported[-1]

    def answer(self, turn: Turn, *, report: bool = True, text: str | None = None) -> None:
        messages = self.session.completed(
            turn,
            prompt_tokens=self.reported[-1] if report else None,
            output_tokens=turn.output_tokens if report else None,
            text=text,
        )
        self.history += [(m.role, plain(m)) for m in messages]

    def run(self, turns: int, *, report: bool = True) -> list[Turn]:
        """Up to so many turns, each answered."""
        for _ in range(turns):
            turn = self.session.next_turn()
            if turn is None:
                break
            self.receive(turn)
            self.answer(turn, report=report)
        return self.turns


@pytest.fixture(scope="session")
def new_session(corpus: Corpus) -> Callable[..., Session]:
    def make(
        scenario: Scenario,
        index: int = 0,
        *,
        chars_per_token: CharsPerToken = 4.0,
        max_model_len: int | None = None,
        run_salt: str = "",
    ) -> Session:
        return Session(scenario, index, corpus, chars_per_token, max_model_len, run_salt=run_salt)

    return make


@pytest.fixture(scope="session")
def target() -> type[Target]:
    return Target
