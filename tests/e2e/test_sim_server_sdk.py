"""The openai SDK and curl against the embedded server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

KEY = "sk-of-the-test"

SDK = """
import json, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
asked = dict(model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=12)
eos = {"ignore_eos": True}
tools = [{"type": "function", "function": {"name": "read_file", "parameters":
          {"type": "object", "properties": {"path": {"type": "string"}}}}}]
out = {}

chunks = list(client.chat.completions.create(
    **asked, stream=True, stream_options={"include_usage": True}, extra_body=eos))
out["text"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
out["finish"] = [c.choices[0].finish_reason for c in chunks if c.choices][-1]
out["usage"] = chunks[-1].usage.model_dump()

whole = client.chat.completions.create(**asked, extra_body=eos)
out["whole"] = whole.choices[0].message.content

called = client.chat.completions.create(
    **{**asked, "max_tokens": 40}, tools=tools, tool_choice="required", extra_body=eos)
out["call"] = called.choices[0].message.tool_calls[0].function.model_dump()
out["call_finish"] = called.choices[0].finish_reason

pieces, name = "", ""
for chunk in client.chat.completions.create(
        **{**asked, "max_tokens": 40}, tools=tools, tool_choice="required", stream=True,
        extra_body=eos):
    for call in chunk.choices[0].delta.tool_calls or []:
        name += call.function.name or ""
        pieces += call.function.arguments or ""
out["streamed_call"] = {"name": name, "arguments": pieces}

thought = client.chat.completions.create(
    **{**asked, "max_tokens": 60},
    extra_body={**eos, "chat_template_kwargs": {"enable_thinking": True}})
out["reasoning"] = thought.choices[0].message.model_dump()["reasoning"]
out["answer"] = thought.choices[0].message.content

out["completion"] = client.completions.create(
    model="tiny", prompt=[1, 2, 3], max_tokens=5, extra_body=eos).choices[0].text
out["models"] = [m.id for m in client.models.list()]

for name, call in {
    "NotFoundError": lambda: client.chat.completions.create(**{**asked, "model": "x"}),
    "BadRequestError": lambda: client.chat.completions.create(**{**asked, "max_tokens": 99999}),
    "AuthenticationError": lambda: openai.OpenAI(
        base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list(),
}.items():
    try:
        call()
    except openai.APIStatusError as error:
        out[name] = type(error).__name__
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with Sim("--api-key", KEY, "--enable-prompt-tokens-details") as sim:
        yield sim


@pytest.fixture(scope="module")
def told(sim: Sim) -> dict[str, Any]:
    url = f"{sim.ready['url']}/v1"
    command = [sys.executable, "-c", SDK, url, KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_streamed_and_whole_answers_are_the_same(told: dict[str, Any]) -> None:
    assert len(told["text"]) == 48  # twelve tokens of four characters
    assert told["text"] == told["whole"]
    assert told["finish"] == "length"
    assert told["usage"]["completion_tokens"] == 12


def test_a_tool_call_has_arguments_that_are_json(told: dict[str, Any]) -> None:
    assert told["call"] == told["streamed_call"]
    assert told["call"]["name"] == "read_file"
    assert list(json.loads(told["call"]["arguments"])) == ["path"]
    assert told["call_finish"] == "tool_calls"


def test_reasoning_comes_apart_from_the_answer(told: dict[str, Any]) -> None:
    # 15 of 60 tokens are thought, one is the mark between, 44 are the answer.
    assert (len(told["reasoning"]), len(told["answer"])) == (60, 176)


def test_completions_models_and_errors(told: dict[str, Any]) -> None:
    assert len(told["completion"]) == 20
    assert told["models"] == ["tiny"]
    for name in ("NotFoundError", "BadRequestError", "AuthenticationError"):
        assert told[name] == name


def test_the_key_guards_v1_alone(sim: Sim) -> None:
    assert sim.get("/v1/models").status == 401
    assert sim.get("/v1/models", {"Authorization": f"Bearer {KEY}"}).status == 200
    assert sim.get("/health").status == sim.get("/metrics").status == 200
    assert sim.post("/sim/faults", {"faults": []}).status == 401


def test_the_key_is_never_shown() -> None:
    with Sim("--api-key", KEY) as sim:
        sim.get("/v1/models", {"Authorization": "Bearer sk-wrong"})
        page = sim.get("/metrics").body.decode()
    for shown in (page, sim.stderr, json.dumps(sim.ready)):
        assert KEY not in shown
        assert "sk-wrong" not in shown


@pytest.mark.needs("curl")
def test_curl_streams() -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 3, "stream": True})
    with Sim() as sim:
        url = f"{sim.ready['url']}/v1/completions"
        command = ["curl", "-sS", "-N", url, "-H", "Content-Type: application/json", "-d", body]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    lines = [line for line in done.stdout.split("\n\n") if line]
    assert len(lines) == 4
    assert lines[-1] == "data: [DONE]"


def test_a_client_id_is_in_the_answer_and_in_the_log() -> None:
    with Sim("--enable-request-id-headers") as sim:
        body = {"model": "tiny", "messages": [], "max_tokens": 1}
        answer = sim.post("/v1/chat/completions", body, {"X-Request-Id": "mine-7"})
    assert answer.json()["id"] == "chatcmpl-mine-7"
    assert answer.header("x-request-id") == "mine-7"
