"""Command lines, faults, request bodies: what is taken, what is refused in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentload.sim.profiles import load_profile
from agentload.sim.server import faults, protocol
from agentload.sim.server.command_line import SettingsError
from agentload.sim.server.errors import ApiError
from agentload.sim.server.faults import FaultError, FaultPlan
from agentload.sim.server.settings import read


def test_defaults_are_those_of_the_data_sheet() -> None:
    settings = read([], {})
    assert settings.served_model_names == ("Qwen2.5-7B",)
    assert settings.engine.max_num_batched_tokens == 8192  # vLLM's default on an H100
    assert settings.engine.max_num_seqs == 1024
    assert settings.engine.max_model_len == 32768
    assert settings.vllm_version == "0.32.0"


def test_chunked_prefill_off_raises_a_default_budget_to_the_model_length() -> None:
    settings = read(["--no-enable-chunked-prefill", "--max-model-len", "131072"], {})
    assert settings.engine.max_num_batched_tokens == 131072
    assert not settings.engine.chunks_prefills


def test_an_old_release_chunks_whatever_the_flag() -> None:
    flags = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"]
    settings = read([*flags, "--vllm-version-profile", "0.9.2"], {})
    assert settings.vllm_version == "0.9.2"
    assert settings.engine.chunks_prefills


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-enable-chunked-prefill", "--max-num-batched-tokens", "100"], "smaller than"),
        (["--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "max_num_seqs (9)"),
        (["--num-gpu-blocks-override", "100"], "max seq len (32768)"),
        (["--block-size", "32"], "--block-size 32 is not modelled, only 16"),
        (["--model-profile", "gpt-9"], "gpt-9"),
        (["--vllm-version-profile", "9.9"], "9.9"),
        (["--gpu-memory-utilization", "1.5"], "1.5"),
        (["--speed", "nan"], "--speed nan"),
        (["--speed", "x"], "--speed"),
        (["--stream-interval", "0"], "--stream-interval 0"),
    ],
)
def test_bad_flags_are_named_with_their_value(flags: list[str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(flags, {})
    assert words in str(caught.value)


def test_all_faults_of_single_flags_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read(["--port", "-1", "--speed", "0", "--fault", "nonsense"], {})
    assert all(word in str(caught.value) for word in ("--port -1", "--speed 0.0", "'nonsense'"))


def test_the_key_may_come_from_the_environment() -> None:
    assert read([], {"VLLM_API_KEY": "k"}).api_key == "k"
    assert read(["--api-key", "flag"], {"VLLM_API_KEY": "k"}).api_key == "flag"


def test_measured_step_costs_are_taken(tmp_path: Path) -> None:
    costs = load_profile("H100-80G", "Qwen2.5-7B").cost_file.model_dump(by_alias=True)
    costs["step"]["c0"] = {"value": 0.125, "provenance": "calibrated"}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs))
    settings = read(["--step-cost-file", str(path)], {})
    assert settings.cost_file.step_cost().c0 == 0.125
    path.write_text("{}")
    with pytest.raises(SettingsError, match=r"costs\.json"):
        read(["--step-cost-file", str(path)], {})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("flood", "there are stall, cut"),
        ("stall:after", "after=''"),
        ("stall:seconds=-1", "seconds='-1'"),
        ("stall:seconds=inf", "seconds='inf'"),
        ("cut:seconds=1", "cut has no setting 'seconds'"),
        ("buffer:every=0", "from 1 to"),
        ("stall:after=2.5", "whole number"),
        ("status:code=200", "from 400 to 599"),
        ("stall:seconds=nan", "seconds='nan'"),
    ],
)
def test_a_fault_that_cannot_be_read(spec: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        faults.parse(spec)


def test_faults_count_requests() -> None:
    plan = FaultPlan([faults.parse("stall:every=2"), faults.parse("cut:skip=1,times=1")])
    hits = [[fault.kind for fault in plan.next_request()] for _ in range(4)]
    assert hits == [["stall"], ["cut"], ["stall"], []]


def refusal(kind: type[protocol.GenerationBody], body: object) -> ApiError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        protocol.check_sampling(protocol.parse(kind, data))
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"messages": [', "body.14", "Expecting value"),
        (b"\xff", "body.0", "JSON decode error"),
        ([], "body", "valid dictionary"),
        ({"messages": [], "max_tokens": "many"}, "body.max_tokens", "valid integer"),
        ({"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content.str", "string"),
        ({"messages": [], "n": 0}, "n", "at least 1"),
        ({"messages": [], "top_p": 2}, "top_p", "in (0, 1]"),
        ({"messages": [], "cache_salt": ""}, "cache_salt", "non-empty"),
    ],
)
def test_bad_bodies_are_refused_with_the_parameter(body: object, param: str, words: str) -> None:
    error = refusal(protocol.ChatBody, body)
    assert error.status == 400
    assert error.details["param"] == param
    assert words in str(error)


def test_a_refusal_does_not_repeat_the_prompt() -> None:
    error = refusal(protocol.ChatBody, {"messages": "x" * 100_000})
    assert len(error.body()) < 500


@pytest.mark.parametrize(
    ("prompt", "count"), [("abcd", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2, 3]], 2)]
)
def test_prompts_of_a_completion(prompt: object, count: int) -> None:
    found = protocol.completion_prompts(prompt)
    assert len(found) == count
    first = prompt[0] if isinstance(prompt, list) else prompt
    assert found[0].is_token_ids == (not isinstance(first, str))


@pytest.mark.parametrize("prompt", [None, [], "", [[]], 7, [7.5], {"a": 1}])
def test_prompts_that_are_none(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        protocol.completion_prompts(prompt)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [(100, 90, None), (100, None, None), (100, 200, "max_tokens"), (190, None, None),
     (191, None, "input_tokens"), (150, 60, "input_tokens"), (300, 4, "input_tokens")],
)  # fmt: skip
def test_what_fits_into_a_context_of_191(prompt: int, asked: int | None, param: str | None) -> None:
    if param is None:
        assert protocol.most_output(prompt, asked, 191) == (asked or 191 - prompt)
        return
    with pytest.raises(ApiError) as caught:
        protocol.most_output(prompt, asked, 191)
    assert caught.value.details["param"] == param
