"""Which body a scenario's requests have, and with which parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentload.client.settings import TargetSettings
from agentload.client.token_body import Tokenizer
from agentload.scenario import load
from agentload.swarm.bodies import new_body, turn_params
from agentload.workload.turn import Message

SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"
INSIDE = {"wire": "completions", "content.cut": "inside_word"}


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        ({}, "messages", [{"role": "user", "content": "hal"}]),
        (
            {"wire": "completions"},
            "prompt",
            "<|im_start|>user\nhal<|im_end|>\n<|im_start|>assistant\n",
        ),
        (INSIDE, "prompt", "hal"),
        (
            {"wire": "token_ids"},
            "prompt",
            [*map(ord, "<|im_start|>user\nhal<|im_end|>\n<|im_start|>assistant\n")],
        ),
        ({**INSIDE, "wire": "token_ids"}, "prompt", [*map(ord, "hal")]),
    ],
    ids=["chat", "text", "inside-word", "ids", "ids-inside-word"],
)
def test_the_body_of_each_wire(overrides: dict[str, Any], key: str, value: object) -> None:
    scenario = load(SMOKE, overrides)
    tokenizer = Tokenizer(lambda text: [*map(ord, text)], cuts=True)
    body = new_body(scenario, TargetSettings(), "m", tokenizer)
    body.add([Message("user", (b"hal",))])
    body.prepare()
    sent = json.loads(b"".join(map(bytes, body.buffers())))
    assert sent[key] == value
    assert sent["model"] == "m"


def test_settings_go_before_the_scenario() -> None:
    scenario = load(SMOKE, {"request.temperature": 0.5, "request.exact_output": True})
    plain, given = TargetSettings(), TargetSettings(temperature=0.2, max_tokens=7)
    of_plain, of_given = (
        json.loads(b"".join(map(bytes, new_body(scenario, settings, "m").buffers())))
        for settings in (plain, given)
    )
    assert (of_plain["temperature"], of_given["temperature"]) == (0.5, 0.2)
    exact = {"max_tokens": 9, "min_tokens": 9, "ignore_eos": True}
    assert turn_params(scenario, plain, 9) == exact
    assert turn_params(scenario, given, 9)["max_tokens"] == 7
    free = load(SMOKE, {"request.exact_output": False})
    assert turn_params(free, plain, 9) == {"max_tokens": 9}
