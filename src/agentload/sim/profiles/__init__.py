"""Data sheets of GPUs, models and vLLM releases, turned into an engine's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentload.sim.core import EngineConfig, Frontend, StepCost
from agentload.sim.profiles.coefficients import (
    DRAWN,
    NOT_MODELLED,
    Coefficient,
    CoefficientFileError,
    CostFile,
    FrontendCoefficients,
    InForce,
    StepCoefficients,
    read_cost_file,
)
from agentload.sim.profiles.hardware import (
    Deployment,
    Gpu,
    Model,
    ProfileError,
    gpu,
    model,
)
from agentload.sim.profiles.prior import data_sheet_costs, prior
from agentload.sim.profiles.versions import VersionProfile, version_profile, version_profiles

NEWEST = "0.32-0.33"
BLOCK_SIZE = 16

__all__ = [
    "BLOCK_SIZE",
    "DRAWN",
    "NEWEST",
    "NOT_MODELLED",
    "Coefficient",
    "CoefficientFileError",
    "CostFile",
    "Deployment",
    "FrontendCoefficients",
    "Gpu",
    "InForce",
    "Model",
    "ProfileError",
    "ReplicaProfile",
    "StepCoefficients",
    "VersionProfile",
    "gpu",
    "load_profile",
    "model",
    "prior",
    "read_cost_file",
    "version_profile",
    "version_profiles",
]


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    """What one replica is assumed to be; `cost_file` says where each number comes from.

    `num_blocks` counts vLLM's null block. A real server prints its own number at start-up: use
    that when there is one, the derived one is off by up to a fifth.
    """

    deployment: Deployment
    version: VersionProfile
    gpu_memory_utilization: float
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    cost_file: CostFile

    @property
    def cost(self) -> StepCost:
        return self.cost_file.step_cost()

    def make_frontend(self) -> Frontend:
        """A tokenizer queue with the assumed costs."""
        return self.cost_file.make_frontend()

    def engine_config(self, **flags: Any) -> EngineConfig:
        """vLLM's settings for this replica; `flags` are `EngineConfig` fields the user gave.

        As in vLLM, turning chunked prefill off raises a default token budget to `max_model_len`.
        Raises `ConfigError`.
        """
        settings: dict[str, Any] = {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "max_model_len": self.max_model_len,
            **self.version.engine,
            **flags,
        }
        chunked = settings.get("enable_chunked_prefill", True)
        forced = settings["chunked_prefill_forced"]
        if not chunked and not forced and "max_num_batched_tokens" not in flags:
            settings["max_num_batched_tokens"] = max(
                settings["max_num_batched_tokens"], settings["max_model_len"]
            )
        return EngineConfig(**settings)


def load_profile(
    gpu_name: str,
    model_name: str,
    *,
    tensor_parallel: int = 1,
    weights: str = "",
    gpu_memory_utilization: float | None = None,
    max_model_len: int | None = None,
    vllm_version: str = NEWEST,
) -> ReplicaProfile:
    """The replica that data sheets suggest: a prior for every number, with its interval.

    `weights` names a format of the model ("bf16", "fp8"). `max_model_len` defaults to the model's
    own limit, or to what fits in the KV cache if that is less. Raises ProfileError.
    """
    deployment = Deployment(gpu(gpu_name), model(model_name), tensor_parallel, weights)
    version = version_profile(vllm_version)
    utilization = (
        version.gpu_memory_utilization if gpu_memory_utilization is None else gpu_memory_utilization
    )
    if not 0 < utilization <= 1:
        raise ProfileError(f"gpu_memory_utilization={utilization} must be above 0, at most 1")
    num_blocks = deployment.kv_tokens(utilization) // BLOCK_SIZE
    if num_blocks < 2:
        raise ProfileError(f"only {num_blocks} KV cache blocks fit; at least 2 are needed")
    fits = (num_blocks - 1) * BLOCK_SIZE
    limit = min(deployment.model.max_position_embeddings, fits)
    budget, sequences = version.default_batch(deployment.gpu)
    return ReplicaProfile(
        deployment=deployment,
        version=version,
        gpu_memory_utilization=utilization,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=sequences,
        max_model_len=_checked_length(max_model_len, limit, fits),
        cost_file=data_sheet_costs(deployment, version),
    )


def _checked_length(asked: int | None, limit: int, fits: int) -> int:
    if asked is None:
        return limit
    if not 0 < asked <= fits:
        raise ProfileError(
            f"max_model_len={asked} must be at least 1 and at most {fits}, the tokens that fit in "
            "the KV cache"
        )
    return asked
