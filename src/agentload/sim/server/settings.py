"""The command line: vLLM's flags, and the simulator's own."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from agentload.sim.core import ConfigError, EngineConfig, StepCost
from agentload.sim.server import faults, hardware
from agentload.sim.server.answer import Options
from agentload.sim.server.faults import Fault

_BLOCK_SIZE: Final = 16
_LAST_PORT: Final = 65535
_LEAST: Final = {
    "max_model_len": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "num_gpu_blocks_override": 2,
    "long_prefill_token_threshold": 0,
    "max_num_queued_reqs": 1,
    "stream_interval": 1,
    "sse_keep_alive_interval": 0.001,
    "renderer_num_workers": 1,
    "speed": 0.001,
    "tokenizer_base_ms": 0,
    "tokenizer_us_per_token": 0,
}


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


class SettingsError(ValueError):
    """Flags that cannot be served; the text lists every fault."""


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
    cost: StepCost
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
        told = f"{self.engine}{self.cost}{self.speed}{self.served_model_names}"
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="agentload sim",
        description="A server with vLLM's API and vLLM's scheduler, and no GPU.",
        allow_abbrev=False,
    )
    switch = argparse.BooleanOptionalAction
    add = parser.add_argument_group("vLLM's flags").add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0: any free port, printed on the ready line")
    add("--api-key", help="guards /v1; also from VLLM_API_KEY")
    add("--served-model-name", nargs="+", help="default: the model profile's name")
    add("--max-model-len", type=int)
    add("--max-num-seqs", type=int)
    add("--max-num-batched-tokens", type=int)
    add("--enable-chunked-prefill", action=switch, default=True)
    add("--enable-prefix-caching", action=switch, default=True)
    add("--long-prefill-token-threshold", type=int, default=0)
    add("--async-scheduling", action=switch, default=True)
    add("--block-size", type=int, default=16)
    add("--num-gpu-blocks-override", type=int)
    add("--gpu-memory-utilization", type=float, default=0.92)
    add("--max-num-queued-reqs", type=int, help="more waiting requests are refused with 503")
    add("--stream-interval", type=int, default=1, help="tokens per chunk after the first")
    add("--sse-keep-alive-interval", type=float, help="seconds between comments while silent")
    add("--enable-prompt-tokens-details", action=switch, default=False)
    add("--enable-per-request-metrics", action=switch, default=False)
    add("--enable-request-id-headers", action=switch, default=False)
    add("--enable-server-load-tracking", action=switch, default=False)
    add("--enable-auto-tool-choice", action=switch, default=False)
    add("--tool-call-parser")
    add("--reasoning-parser", help="any name: answers reason first")
    add("--renderer-num-workers", type=int, default=1)
    own = parser.add_argument_group("the simulator's own").add_argument
    own("--gpu-profile", default="H100-80G", help=", ".join(hardware.GPUS))
    own("--model-profile", default="Qwen2.5-7B", help=", ".join(hardware.MODELS))
    own("--vllm-version-profile", default="0.32", choices=("0.32",))
    own("--speed", type=float, default=1.0, help="simulated seconds per second")
    own("--tokenizer-base-ms", type=float, default=3.0, help="per request")
    own("--tokenizer-us-per-token", type=float, default=2.0)
    own("--request-log", type=Path, metavar="FILE", help="one JSON line per request")
    own("--fault", action="append", default=[], metavar="KIND:name=value,...")
    return parser


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of a command line; raises SettingsError with every fault."""
    given = _parser().parse_args(argv)
    found = list(_faults(given))
    wanted: list[Fault] = []
    for spec in given.fault:
        try:
            wanted.append(faults.parse(spec))
        except faults.FaultError as error:
            found.append(f"--fault {error}")
    if found:
        raise SettingsError("; ".join(found))
    machine = hardware.load(given.gpu_profile, given.model_profile, given.gpu_memory_utilization)
    return Settings(
        host=given.host,
        port=given.port,
        api_key=given.api_key or environment.get("VLLM_API_KEY") or None,
        served_model_names=tuple(given.served_model_name or [given.model_profile]),
        gpu_profile=given.gpu_profile,
        model_profile=given.model_profile,
        gpu_memory_utilization=given.gpu_memory_utilization,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
        vllm_version=f"{given.vllm_version_profile}.0",
        engine=_engine(given, machine),
        cost=machine.cost,
        speed=given.speed,
        tokenizer_base_s=given.tokenizer_base_ms / 1000,
        tokenizer_per_token_s=given.tokenizer_us_per_token / 1e6,
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
        faults=tuple(wanted),
    )


def _faults(given: argparse.Namespace) -> Iterator[str]:
    """What is wrong with single flags; what vLLM refuses in combination is the engine's to say."""
    for flag, value, known in (
        ("gpu-profile", given.gpu_profile, hardware.GPUS),
        ("model-profile", given.model_profile, hardware.MODELS),
    ):
        if value not in known:
            yield f"--{flag} {value!r} is not known; there are {', '.join(known)}"
    if given.block_size != _BLOCK_SIZE:
        yield f"--block-size {given.block_size} is not modelled, only {_BLOCK_SIZE}"
    if not 0 <= given.port <= _LAST_PORT:
        yield f"--port {given.port} must be from 0 to {_LAST_PORT}"
    if not 0 < given.gpu_memory_utilization <= 1:
        yield f"--gpu-memory-utilization {given.gpu_memory_utilization} must be above 0, at most 1"
    for name, least in _LEAST.items():
        value = getattr(given, name)
        if value is not None and not least <= value < float("inf"):
            yield f"--{name.replace('_', '-')} {value} must be a number of at least {least}"


def _engine(given: argparse.Namespace, machine: hardware.Hardware) -> EngineConfig:
    """The engine's settings, with vLLM's defaults; raises SettingsError as vLLM's start-up does."""
    model_len = given.max_model_len or machine.max_model_len
    budget = given.max_num_batched_tokens
    if budget is None:
        budget = machine.max_num_batched_tokens
        if not given.enable_chunked_prefill:
            budget = max(budget, model_len)
    blocks = given.num_gpu_blocks_override or machine.num_blocks
    if blocks * _BLOCK_SIZE < model_len + _BLOCK_SIZE:
        raise SettingsError(
            f"To serve at least one request with the model's max seq len ({model_len}), more KV"
            f" cache is needed than the {blocks * _BLOCK_SIZE} tokens available. Try increasing"
            " `gpu_memory_utilization` or decreasing `max_model_len`."
        )
    if not given.enable_chunked_prefill and budget < model_len:
        raise SettingsError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({model_len}). This"
            " effectively limits the maximum sequence length to max_num_batched_tokens and makes"
            " vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease"
            " max_model_len."
        )
    try:
        return EngineConfig(
            max_num_seqs=given.max_num_seqs or min(machine.max_num_seqs, budget),
            max_num_batched_tokens=budget,
            num_blocks=blocks,
            enable_chunked_prefill=given.enable_chunked_prefill,
            enable_prefix_caching=given.enable_prefix_caching,
            block_size=_BLOCK_SIZE,
            long_prefill_token_threshold=given.long_prefill_token_threshold,
            max_model_len=model_len,
            async_scheduling=given.async_scheduling,
        )
    except ConfigError as error:
        raise SettingsError(str(error)) from None
