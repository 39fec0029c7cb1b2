"""Planned sizes on targets whose tokens are unlike the table's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from agentload.scenario import Scenario
from agentload.workload.calibration import (
    by_kind,
    calibrate,
    kinds_of,
    mixed,
)
from agentload.workload.content import CHARS_PER_TOKEN, Corpus
from agentload.workload.session import Session

MakeScenario = Callable[..., Scenario]


def text_of(pieces: list[bytes]) -> str:
    text = orjson.loads(b'"' + b"".join(pieces) + b'"')
    assert isinstance(text, str)
    return text


def bytes_by_four(text: str) -> int:
    """As a tokenizer that has four bytes a token whatever the kind of text."""
    return -(-len(text.encode()) // 4)


def test_only_the_kinds_in_use_are_measured(make_scenario: MakeScenario, corpus: Corpus) -> None:
    asked: list[str] = []

    def count(pieces: list[bytes]) -> int:
        asked.append(text_of(pieces))
        return 2000

    scenario = make_scenario(content={"tool_results": {"view": 1, "log": 0}})
    measured = calibrate(scenario, corpus, None, count)
    assert measured == dict.fromkeys(("view", "prose", "code", "json", "non_ascii"), 4.0)
    assert kinds_of(scenario) == set(measured)
    assert {len(text) for text in asked} == {8000}
    assert len(set(asked)) == 5


def test_samples_fit_a_small_window(make_scenario: MakeScenario, corpus: Corpus) -> None:
    sizes: list[int] = []

    def count(pieces: list[bytes]) -> int:
        sizes.append(bytes_by_four(text_of(pieces)))
        return sizes[-1]

    calibrate(make_scenario(), corpus, 1000, count)
    assert 100 < max(sizes) < 900


@pytest.mark.parametrize("tokens", [None, 0, -1])
def test_a_target_that_counts_nothing_gives_nothing(
    make_scenario: MakeScenario, corpus: Corpus, tokens: int | None
) -> None:
    assert calibrate(make_scenario(), corpus, None, lambda _: tokens) is None


def test_measured_kinds_stand_and_move_the_others(make_scenario: MakeScenario) -> None:
    twice = {"code": 2 * CHARS_PER_TOKEN["code"], "json": 2 * CHARS_PER_TOKEN["json"]}
    ratios = by_kind(make_scenario(), twice)
    assert ratios == pytest.approx({kind: 2 * value for kind, value in CHARS_PER_TOKEN.items()})


def test_one_number_is_that_of_the_mix(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(
        content={
            "tool_results": {"code": 1},
            "answers": {"code": 1},
            "user_text": {"code": 1},
            "non_ascii_share": 0.0,
        }
    )
    assert by_kind(scenario, 5.0)["code"] == pytest.approx(5.0)
    assert mixed(scenario, {"code": 3.0}) == pytest.approx(3.0)
    half = make_scenario(content={"non_ascii_share": 0.5})
    every = dict.fromkeys(CHARS_PER_TOKEN, 4.0) | {"non_ascii": 1.0}
    assert mixed(half, every) == pytest.approx(1 / (0.5 / 4 + 0.5 / 1))


def test_with_measured_kinds_first_prompts_and_prefix_are_as_long_as_planned(
    make_scenario: MakeScenario, corpus: Corpus, target: Any
) -> None:
    """Without them this target's prefix would be a quarter longer than the 1,500 planned."""
    scenario = make_scenario()
    measured = calibrate(scenario, corpus, None, lambda pieces: bytes_by_four(text_of(pieces)))
    assert measured is not None
    for index in range(4):
        t = target(Session(scenario, index, corpus, measured, None), bytes_by_four, 4)
        t.run(8)
        prefix = t.tokens(t.history[:1])
        assert prefix == pytest.approx(1500, rel=0.01)
        assert t.turns[0].planned_prompt_tokens == pytest.approx(t.reported[0], rel=0.03)
        for turn, tokens in zip(t.turns[1:], t.reported[1:], strict=True):
            assert turn.planned_prompt_tokens == pytest.approx(tokens, rel=0.02)
