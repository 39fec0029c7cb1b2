"""Data sheets, version profiles, step-cost files."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentload.sim.profiles import (
    CoefficientFileError,
    ProfileError,
    ReplicaProfile,
    gpu,
    load_profile,
    model,
    prior,
    read_cost_file,
    version_profile,
    version_profiles,
)
from agentload.sim.profiles.hardware import data

# Worked out by hand from the data sheets: c0 ms, c1 us, c3 ns, c4 ns, KiB of KV per token,
# thousand KV tokens, sessions that fit at 86K and 123K, cold prefill of 6K and 123K in s,
# 450 new tokens at 86K in ms.
TABLE: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("A100-40G", "Qwen2.5-7B", "bf16"): (14.3, 82, 46, 2.57, 56, 371, 4.3, 3.0, 0.58, 30.5, 151),
    ("H100-80G", "Qwen2.5-7B", "bf16"): (7.7, 26, 21, 0.81, 56, 1050, 12.3, 8.6, 0.18, 9.5, 51),
    ("H200-141G", "Qwen2.5-7B", "bf16"): (6.0, 26, 15, 0.81, 56, 2100, 24, 17, 0.18, 9.5, 49),
    ("H100-80G", "Qwen3-Coder-30B-A3B", "fp8"): (
        *(7.3, 20.5, 37, 1.59, 96, 460, 5.3, 3.7, 0.16, 14.7, 78),
    ),
    ("H200-141G", "Qwen3-Coder-30B-A3B", "bf16"): (
        *(9.4, 20.5, 26, 1.59, 96, 760, 8.8, 6.2, 0.16, 14.7, 80),
    ),
}


def cold_prefill_s(profile: ReplicaProfile, tokens: int) -> float:
    budget, cost = profile.max_num_batched_tokens, profile.cost
    starts = range(0, tokens, budget)
    chunks = [(start, min(budget, tokens - start)) for start in starts]
    return sum(cost.step_s(n, 0, 0, n * (start + n / 2)) for start, n in chunks)


@pytest.mark.parametrize("sheet", TABLE, ids="-".join)
def test_data_sheets_give_the_known_figures(sheet: tuple[str, str, str]) -> None:
    gpu_name, model_name, weights = sheet
    profile = load_profile(gpu_name, model_name, weights=weights)
    cost, kv_tokens = profile.cost, profile.deployment.kv_tokens(0.92)
    figures = (
        cost.c0 * 1e3,
        cost.c1 * 1e6,
        cost.c3 * 1e9,
        cost.c4 * 1e9,
        profile.deployment.kv_bytes_per_token / 1024,
        kv_tokens / 1e3,
        kv_tokens / 86e3,
        kv_tokens / 123e3,
        cold_prefill_s(profile, 6000),
        cold_prefill_s(profile, 123_000),
        cost.step_s(450, 0, 0, 450 * 86_000) * 1e3,
    )
    assert figures == pytest.approx(TABLE[sheet], rel=0.025)


def test_a_model_that_does_not_fit_says_so() -> None:
    with pytest.raises(ProfileError, match="does not fit on 1 x A100-40G"):
        load_profile("A100-40G", "Qwen3-Coder-30B-A3B")


def test_tensor_parallel_shares_work_and_memory() -> None:
    one = load_profile("H100-80G", "Llama-3.1-8B")
    four = load_profile("H100-80G", "Llama-3.1-8B", tensor_parallel=4)
    assert four.cost.c3 == pytest.approx(one.cost.c3 / 4)
    assert four.cost.c4 == pytest.approx(one.cost.c4 / 4)
    assert one.cost.c1 / 4 < four.cost.c1 < one.cost.c1
    assert four.num_blocks > 4 * one.num_blocks


@pytest.mark.parametrize("name", data("models")["models"])
def test_every_model_loads_by_each_of_its_names(name: str) -> None:
    shape = model(name)
    assert shape.source
    assert {model(alias).name for alias in shape.aliases} == {name}
    assert load_profile("H200-141G", name, tensor_parallel=2).num_blocks > 0


@pytest.mark.parametrize("name", data("gpus")["gpus"])
def test_every_gpu_names_its_source(name: str) -> None:
    assert gpu(name).source


def test_every_assumption_is_explained() -> None:
    assert data("assumptions")["values"].keys() == data("assumptions")["meaning"].keys()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("0.8.5", "0.8-0.11"),
        ("0.11.2", "0.8-0.11"),
        ("0.16.0", "0.16"),
        ("0.19.1", "0.19-0.22"),
        ("v0.22.1", "0.19-0.22"),
        ("0.32.0", "0.32-0.33"),
        ("0.33.0+cu129", "0.32-0.33"),
        ("0.19-0.22", "0.19-0.22"),
    ],
)
def test_a_release_finds_its_profile(asked: str, name: str) -> None:
    assert version_profile(asked).name == name


@pytest.mark.parametrize("asked", ["0.7.3", "0.13.0", "1.2", "latest", ""])
def test_a_release_nobody_read_is_not_guessed(asked: str) -> None:
    with pytest.raises(ProfileError, match=r"known: 0\.8-0\.11, 0\.16"):
        version_profile(asked)


def test_version_profiles_differ_as_the_releases_do() -> None:
    by_name = {profile.name: profile for profile in version_profiles()}
    forced = {name: p.engine["chunked_prefill_forced"] for name, p in by_name.items()}
    assert forced == {name: name == "0.8-0.11" for name in by_name}
    oldest = load_profile("H100-80G", "Llama-3.1-8B", vllm_version="0.11.0")
    assert oldest.engine_config(enable_chunked_prefill=False).chunks_prefills
    assert not oldest.engine_config().async_scheduling
    assert oldest.gpu_memory_utilization == 0.9


def test_default_batches_follow_the_gpu() -> None:
    newest = version_profile("0.32.0")
    batches = {name: newest.default_batch(gpu(name)) for name in data("gpus")["gpus"]}
    assert batches == {
        "A100-40G": (2048, 256),
        "A100-80G": (2048, 256),
        "H100-80G": (8192, 1024),
        "H200-141G": (8192, 1024),
    }


def test_chunked_prefill_off_raises_a_default_budget_only() -> None:
    profile = load_profile("H100-80G", "Llama-3.1-8B")
    assert profile.engine_config(enable_chunked_prefill=False).max_num_batched_tokens == 131072
    with pytest.raises(ValueError, match="smaller than max_model_len"):
        profile.engine_config(enable_chunked_prefill=False, max_num_batched_tokens=8192)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"gpu_name": "B300"}, "known: A100-40G"),
        ({"model_name": "x"}, "known: Qwen2.5-7B"),
        ({"weights": "int2"}, "known: bf16, fp8"),
        ({"tensor_parallel": 0}, "at least 1"),
        ({"gpu_memory_utilization": 1.5}, "at most 1"),
        ({"max_model_len": 10**9}, "at most"),
    ],
)
def test_faults_name_what_is_known(options: dict[str, Any], fault: str) -> None:
    settings = {"gpu_name": "H100-80G", "model_name": "Llama-3.1-8B", **options}
    with pytest.raises(ProfileError, match=fault):
        load_profile(**settings)


def test_a_cost_file_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = load_profile("H100-80G", "gpt-oss-120b")
    path = tmp_path / "cost.json"
    profile.cost_file.write(path)
    assert read_cost_file(path) == profile.cost_file
    stored = json.loads(path.read_text())
    assert stored["schema"] == "agentload.step-cost/1"
    assert stored["step"]["c0"]["provenance"] == "data sheet"
    assert stored["step"]["c0"]["low"] * 4 == pytest.approx(stored["step"]["c0"]["high"])
    assert list(tmp_path.iterdir()) == [path]


def test_a_faulty_cost_file_names_every_key(tmp_path: Path) -> None:
    profile = load_profile("H100-80G", "gpt-oss-120b")
    path = tmp_path / "cost.json"
    profile.cost_file.write(path)
    stored = json.loads(path.read_text())
    stored["step"]["c1"]["value"] = -1
    stored["step"]["c2"]["low"] = 1.0
    stored["extra"] = 1
    del stored["step"]["c3"]
    path.write_text(json.dumps(stored))
    with pytest.raises(CoefficientFileError) as caught:
        read_cost_file(path)
    for part in (str(path), "step.c1.value", "step.c2", "step.c3", "extra"):
        assert part in str(caught.value)
    with pytest.raises(CoefficientFileError, match="cannot read"):
        read_cost_file(tmp_path / "none.json")


def test_a_prior_is_a_spread_around_the_data_sheet() -> None:
    sheet = load_profile("H100-80G", "Llama-3.1-8B").cost_file
    belief = prior("H100-80G", "Llama-3.1-8B")
    assert set(belief.not_measured) == {"c0", "c1", "c2", "c3", "c4", "base_s", "per_token_s"}
    assert {belief.coefficient(n).provenance for n in belief.not_measured} == {"prior only"}
    assert belief.step_cost() == sheet.step_cost()
    assert len(belief.draws) == 200
    first = sorted(draw[0] for draw in belief.draws)
    assert first[10] == pytest.approx(sheet.step.c0.value / 2, rel=0.25)
    assert first[189] == pytest.approx(sheet.step.c0.value * 2, rel=0.25)
    cost, frontend = belief.drawn(7)
    assert [cost.c0, cost.c4, frontend.base_s, frontend.per_token_s] == [
        belief.draws[7][i] for i in (0, 4, 6, 7)
    ]


def test_an_older_cost_file_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    load_profile("H100-80G", "gpt-oss-120b").cost_file.write(path)
    stored = json.loads(path.read_text())
    early = ("schema", "form", "interval_share", "step", "frontend", "subject", "source")
    path.write_text(json.dumps({key: stored[key] for key in early}))
    read = read_cost_file(path)
    assert read.draws == []
    assert (read.step_discrepancy, read.ttft_discrepancy) == (0.03, 0.05)
    assert read.in_force.kv_blocks is None


def test_faulty_draws_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    prior("H100-80G", "gpt-oss-120b").write(path)
    stored = json.loads(path.read_text())
    for draws, fault in (
        (stored["draws"][:59], "60 to 400"),
        ([[0.0] * 8] * 60, "must take time"),
        ([[1.0] * 7] * 60, "draws.0"),
    ):
        path.write_text(json.dumps({**stored, "draws": draws}))
        with pytest.raises(CoefficientFileError, match=fault):
            read_cost_file(path)
