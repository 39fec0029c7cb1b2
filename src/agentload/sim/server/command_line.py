"""The command line: vLLM's flags, and the simulator's own."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from agentload.sim.profiles import BLOCK_SIZE, NEWEST, version_profiles

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


class SettingsError(ValueError):
    """Flags that cannot be served; the text lists every fault."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="agentload sim",
        description="A server with vLLM's API and vLLM's scheduler, and no GPU.",
        allow_abbrev=False,
    )
    _add_vllm_flags(made.add_argument_group("vLLM's flags"))
    _add_own_flags(made.add_argument_group("the simulator's own"))
    return made


def _add_vllm_flags(group: argparse._ArgumentGroup) -> None:
    switch, add = argparse.BooleanOptionalAction, group.add_argument
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
    add("--async-scheduling", action=switch, default=None, help="default: the version's")
    add("--block-size", type=int, default=16)
    add("--num-gpu-blocks-override", type=int)
    add("--gpu-memory-utilization", type=float)
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


def _add_own_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    versions = ", ".join(profile.name for profile in version_profiles())
    add("--gpu-profile", default="H100-80G", help="a data sheet by name; a wrong one lists all")
    add("--model-profile", default="Qwen2.5-7B", help="the same")
    add("--vllm-version-profile", default=NEWEST, help=f"a release, or one of {versions}")
    add("--step-cost-file", type=Path, metavar="FILE", help="measured coefficients")
    add("--speed", type=float, default=1.0, help="simulated seconds per second")
    add("--tokenizer-base-ms", type=float, help="per request; default: the step cost's")
    add("--tokenizer-us-per-token", type=float)
    add("--request-log", type=Path, metavar="FILE", help="one JSON line per request")
    add("--fault", action="append", default=[], metavar="KIND:name=value,...")


def faults(given: argparse.Namespace) -> Iterator[str]:
    """What is wrong with single flags; what vLLM refuses in combination is the engine's to say."""
    if given.block_size != BLOCK_SIZE:
        yield f"--block-size {given.block_size} is not modelled, only {BLOCK_SIZE}"
    if not 0 <= given.port <= _LAST_PORT:
        yield f"--port {given.port} must be from 0 to {_LAST_PORT}"
    for name, least in _LEAST.items():
        value = getattr(given, name)
        if value is not None and not least <= value < float("inf"):
            yield f"--{name.replace('_', '-')} {value} must be a number of at least {least}"
