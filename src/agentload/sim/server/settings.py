"""What a server is started with, checked the way vLLM checks it."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentload.sim.core import ConfigError, EngineConfig
from agentload.sim.profiles import (
    BLOCK_SIZE,
    CoefficientFileError,
    CostFile,
    ProfileError,
    ReplicaProfile,
    load_profile,
    read_cost_file,
)
from agentload.sim.server import command_line, faults
from agentload.sim.server.answer import Options
from agentload.sim.server.command_line import SettingsError
from agentload.sim.server.faults import Fault

_UNSET_CACHE_LABELS: Final = (
    "cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_cache_memory_bytes",
    "kv_offloading_size", "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks",
    "prefix_match_unit", "skip_page_size_padded", "sliding_window",
)  # fmt: skip
_FIXED_CACHE_LABELS: Final = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "auto",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


@dataclass(frozen=True, slots=True)
class Settings:
    host: str
    port: int
    api_key: str | None
    served_model_names: tuple[str, ...]
    gpu_profile: str
    model_profile: str
    gpu_memory_utilization: float
    num_gpu_blocks_override: int | None
    vllm_version: str
    engine: EngineConfig
    cost_file: CostFile
    own_model_len: int  # what the model is made for, by its own configuration
    speed: float
    tokenizer_base_s: float
    tokenizer_per_token_s: float
    tokenizer_workers: int
    max_num_queued_reqs: int | None
    stream_interval: int
    sse_keep_alive_interval: float | None
    enable_prompt_tokens_details: bool
    enable_per_request_metrics: bool
    enable_request_id_headers: bool
    enable_server_load_tracking: bool
    answers: Options
    request_log: Path | None
    faults: tuple[Fault, ...]

    @property
    def fingerprint(self) -> str:
        """As vLLM's: the version, and a hash of the settings that shape answers."""
        told = f"{self.engine}{self.cost_file.step}{self.speed}{self.served_model_names}"
        digest = hashlib.sha256(told.encode()).hexdigest()[:8]
        return f"vllm-{self.vllm_version}-{digest}"

    def described(self) -> dict[str, str]:
        """What `agentload_sim_info` tells a run's manifest."""
        engine = self.engine
        return {
            "speed": f"{self.speed:g}",
            "gpu_profile": self.gpu_profile,
            "model_profile": self.model_profile,
            "vllm_version": self.vllm_version,
            "enable_chunked_prefill": str(engine.enable_chunked_prefill),
            "max_num_batched_tokens": str(engine.max_num_batched_tokens),
            "max_num_seqs": str(engine.max_num_seqs),
            "long_prefill_token_threshold": str(engine.long_prefill_token_threshold),
            "async_scheduling": str(engine.async_scheduling),
        }

    def cache_config(self) -> dict[str, str]:
        """The labels of `vllm:cache_config_info` in 0.32; "None" is what vLLM says for unset."""
        engine = self.engine
        size = str(engine.block_size)
        tokens = engine.usable_blocks * engine.block_size
        unset = dict.fromkeys(_UNSET_CACHE_LABELS, "None")
        return (
            unset
            | _FIXED_CACHE_LABELS
            | {
                "block_size": size,
                "effective_attention_block_size": size,
                "enable_prefix_caching": str(engine.enable_prefix_caching),
                "gpu_memory_utilization": f"{self.gpu_memory_utilization:g}",
                "kv_cache_max_concurrency": repr(tokens / engine.max_model_len),
                "kv_cache_size_tokens": str(tokens),
                "num_gpu_blocks": str(engine.num_blocks),
                "num_gpu_blocks_override": str(self.num_gpu_blocks_override),
            }
        )


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of a command line; raises SettingsError with every fault."""
    given, wanted = _checked(argv)
    replica = _replica(given)
    costs = _costs(given, replica)
    tokenizer = costs.frontend
    return Settings(
        host=given.host,
        port=given.port,
        api_key=given.api_key or environment.get("VLLM_API_KEY") or None,
        served_model_names=tuple(given.served_model_name or [given.model_profile]),
        gpu_profile=given.gpu_profile,
        model_profile=given.model_profile,
        gpu_memory_utilization=replica.gpu_memory_utilization,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
        vllm_version=_release(given.vllm_version_profile, replica.version.first),
        engine=_engine(given, replica),
        cost_file=costs,
        own_model_len=replica.deployment.model.max_position_embeddings,
        speed=given.speed,
        tokenizer_base_s=_given(given.tokenizer_base_ms, 1e-3, tokenizer.base_s.value),
        tokenizer_per_token_s=_given(
            given.tokenizer_us_per_token, 1e-6, tokenizer.per_token_s.value
        ),
        tokenizer_workers=given.renderer_num_workers,
        max_num_queued_reqs=given.max_num_queued_reqs,
        stream_interval=given.stream_interval,
        sse_keep_alive_interval=given.sse_keep_alive_interval,
        enable_prompt_tokens_details=given.enable_prompt_tokens_details,
        enable_per_request_metrics=given.enable_per_request_metrics,
        enable_request_id_headers=given.enable_request_id_headers,
        enable_server_load_tracking=given.enable_server_load_tracking,
        answers=Options(given.enable_auto_tool_choice, bool(given.reasoning_parser)),
        request_log=given.request_log,
        faults=wanted,
    )


def _checked(argv: Sequence[str]) -> tuple[argparse.Namespace, tuple[Fault, ...]]:
    """The flags and the faults asked for; raises SettingsError with everything that is wrong."""
    given = command_line.parser().parse_args(argv)
    found = list(command_line.faults(given))
    wanted: list[Fault] = []
    for spec in given.fault:
        try:
            wanted.append(faults.parse(spec))
        except faults.FaultError as error:
            found.append(f"--fault {error}")
    if found:
        raise SettingsError("; ".join(found))
    return given, tuple(wanted)


def _given(value: float | None, unit: float, default: float) -> float:
    return default if value is None else value * unit


def _release(asked: str, first: str) -> str:
    """The version to tell clients: the release asked for, or a profile's first one."""
    release = first if "-" in asked else asked.removeprefix("v")
    return release if release.count(".") > 1 else f"{release}.0"


def _replica(given: argparse.Namespace) -> ReplicaProfile:
    try:
        return load_profile(
            given.gpu_profile,
            given.model_profile,
            gpu_memory_utilization=given.gpu_memory_utilization,
            vllm_version=given.vllm_version_profile,
        )
    except ProfileError as error:
        raise SettingsError(str(error)) from None


def _costs(given: argparse.Namespace, replica: ReplicaProfile) -> CostFile:
    try:
        return read_cost_file(given.step_cost_file) if given.step_cost_file else replica.cost_file
    except CoefficientFileError as error:
        raise SettingsError(f"--step-cost-file {error}") from None


def _engine(given: argparse.Namespace, replica: ReplicaProfile) -> EngineConfig:
    """The engine's settings; raises SettingsError where vLLM's start-up does."""
    names = (
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "long_prefill_token_threshold",
        "async_scheduling",
    )
    flags = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    if given.num_gpu_blocks_override is not None:
        flags["num_blocks"] = given.num_gpu_blocks_override
    if given.max_num_seqs is None and given.max_num_batched_tokens is not None:
        flags["max_num_seqs"] = min(replica.max_num_seqs, given.max_num_batched_tokens)
    _check_start(flags, replica)
    try:
        return replica.engine_config(**flags)
    except ConfigError as error:
        raise SettingsError(str(error)) from None


def _check_start(flags: Mapping[str, Any], replica: ReplicaProfile) -> None:
    """The two refusals that people meet, in vLLM's words."""
    model_len = flags.get("max_model_len", replica.max_model_len)
    tokens = (flags.get("num_blocks", replica.num_blocks) - 1) * BLOCK_SIZE
    if model_len > tokens:
        raise SettingsError(
            f"To serve at least one request with the model's max seq len ({model_len}), more KV"
            f" cache is needed than the {tokens} tokens available. Try increasing"
            " `gpu_memory_utilization` or decreasing `max_model_len`."
        )
    budget = flags.get("max_num_batched_tokens")
    forced = replica.version.engine["chunked_prefill_forced"]
    if not flags["enable_chunked_prefill"] and not forced and budget and budget < model_len:
        raise SettingsError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({model_len}). This"
            " effectively limits the maximum sequence length to max_num_batched_tokens and makes"
            " vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease"
            " max_model_len."
        )
