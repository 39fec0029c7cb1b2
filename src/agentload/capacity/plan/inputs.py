"""What a plan is made from: kinds of replicas, sessions, limits; every fault at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentload.capacity.plan.search import Hardware
from agentload.sim.core import ConfigError, EngineConfig
from agentload.sim.profiles import (
    NEWEST,
    CoefficientFileError,
    CostFile,
    ProfileError,
    load_profile,
    read_cost_file,
    version_profile,
)

DEFAULT_BATCH = (2048, 256)  # vLLM's smallest defaults: (token budget, sequences)


class PlanInputError(ValueError):
    """Options or files that no plan can be made from; the text has every fault."""


def prices(texts: Sequence[str]) -> dict[str, float]:
    """`GPU=MONEY` texts as money per GPU and hour. Raises PlanInputError."""
    found, faults = {}, []
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not name or not 0 <= price < 1e6:
            faults.append(f"--price {text}: allowed is GPU=MONEY per GPU and hour, as H100-80G=2.5")
            continue
        found[name] = price
    if faults:
        raise PlanInputError("\n".join(faults))
    return found


def from_data_sheets(
    names: Sequence[str],
    model: str,
    price: Mapping[str, float],
    *,
    tensor_parallel: int = 1,
    weights: str = "",
    max_model_len: int | None = None,
    vllm_version: str | None = None,
) -> list[Hardware]:
    """Replicas that were never measured. Raises PlanInputError."""
    kinds, faults = [], []
    for name in names:
        try:
            profile = load_profile(
                name,
                model,
                tensor_parallel=tensor_parallel,
                weights=weights,
                max_model_len=max_model_len,
                vllm_version=vllm_version or NEWEST,
            )
            config = profile.engine_config()
        except (ProfileError, ConfigError) as error:
            faults.append(str(error))
            continue
        label = name if tensor_parallel == 1 else f"{tensor_parallel} x {name}"
        kinds.append(Hardware(label, tensor_parallel, config, profile.cost_file, price.get(name)))
    if faults:
        raise PlanInputError("\n".join(dict.fromkeys(faults)))
    return kinds


def from_files(
    paths: Sequence[Path],
    price: Mapping[str, float],
    *,
    kv_blocks: int | None = None,
    max_model_len: int | None = None,
) -> list[Hardware]:
    """Replicas that were calibrated or fitted, one a file. Raises PlanInputError."""
    kinds, faults = [], []
    for path in paths:
        try:
            kinds.append(_from_file(path, price, kv_blocks, max_model_len))
        except (CoefficientFileError, ProfileError, ConfigError, PlanInputError) as error:
            faults.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    if faults:
        raise PlanInputError("\n".join(faults))
    return kinds


def _from_file(
    path: Path, price: Mapping[str, float], kv_blocks: int | None, max_model_len: int | None
) -> Hardware:
    file = read_cost_file(path)
    gpu = str(file.subject.get("gpu", path.stem))
    gpus = int(file.subject.get("tensor_parallel", 1))
    config = engine_config(file, kv_blocks=kv_blocks, max_model_len=max_model_len)
    name = gpu if gpus == 1 else f"{gpus} x {gpu}"
    return Hardware(name, gpus, config, file, price.get(gpu))


def engine_config(
    file: CostFile, *, kv_blocks: int | None = None, max_model_len: int | None = None
) -> EngineConfig:
    """The engine a cost file was measured on: what was found in force, else what the data sheets
    of its GPU and model say, else vLLM's smallest defaults.

    Raises PlanInputError when nothing tells the number of KV blocks.
    """
    base = _sheet_config(file)
    found = file.in_force
    blocks = kv_blocks or found.kv_blocks or (base.num_blocks if base else None)
    if blocks is None:
        raise PlanInputError(
            "in_force.kv_blocks is missing, and its gpu and model have no data sheet: give"
            " --kv-blocks (the server prints it when it starts; cache_config_info has it, too)"
        )
    length = max_model_len or found.max_model_len or (base.max_model_len if base else 131072)
    given: dict[str, Any] = {
        "num_blocks": blocks,
        "max_model_len": length,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "max_num_seqs": found.max_num_seqs,
        "long_prefill_token_threshold": found.long_prefill_token_threshold,
        "enable_chunked_prefill": found.chunked_prefill,
        "enable_prefix_caching": found.prefix_caching,
        "async_scheduling": found.async_scheduling,
        "block_size": found.block_size,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if base is not None:
        return replace(base, **given)
    budget, sequences = DEFAULT_BATCH
    switches = version_profile(file.version_profile).engine if file.version_profile else {}
    settings = {"max_num_batched_tokens": budget, "max_num_seqs": sequences, **switches}
    return EngineConfig(**{**settings, **given})


def _sheet_config(file: CostFile) -> EngineConfig | None:
    subject = file.subject
    try:
        return load_profile(
            str(subject.get("gpu")),
            str(subject.get("model")),
            tensor_parallel=int(subject.get("tensor_parallel", 1)),
            weights=str(subject.get("weights", "")),
            vllm_version=file.version_profile or NEWEST,
        ).engine_config()
    except ProfileError:
        return None


def version_warning(file: CostFile) -> str | None:
    """Why the scheduler that is modelled may not be the server's; None where they agree."""
    release = file.subject.get("vllm_version")
    if file.version_profile is None or release is None:
        return None
    try:
        fitting = version_profile(str(release)).name
    except ProfileError as error:
        return f"the server's vLLM {release} is not modelled ({error}); {file.version_profile} is"
    if fitting == version_profile(file.version_profile).name:
        return None
    return (
        f"the coefficients were measured with the scheduler of vLLM {file.version_profile}, and"
        f" the server has {release}, which schedules as {fitting}"
    )
