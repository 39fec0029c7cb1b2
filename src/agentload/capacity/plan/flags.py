"""A plan as what is typed: flags of `vllm serve`, a patch for kubectl."""

from __future__ import annotations

import json
import shlex

from agentload.capacity.plan.planning import Option
from agentload.capacity.plan.search import Setting

DEPLOYMENT = "agentload-server"  # as in k8s/base/vllm


def serve_flags(setting: Setting) -> list[str]:
    """The flags of `vllm serve` that the plan rests on, both switches explicit."""
    config = setting.config()
    flags = [
        f"--max-model-len={config.max_model_len}",
        f"--max-num-seqs={config.max_num_seqs}",
        f"--max-num-batched-tokens={config.max_num_batched_tokens}",
        f"--long-prefill-token-threshold={config.long_prefill_token_threshold}",
        f"--{'' if config.enable_chunked_prefill else 'no-'}enable-chunked-prefill",
        f"--{'' if config.enable_prefix_caching else 'no-'}enable-prefix-caching",
    ]
    if setting.hardware.gpus > 1:
        flags.append(f"--tensor-parallel-size={setting.hardware.gpus}")
    return flags


def serve_command(setting: Setting) -> str:
    """The command of one replica."""
    model = str(setting.hardware.cost_file.subject.get("model", "MODEL"))
    return " ".join(["vllm serve", shlex.quote(model), *serve_flags(setting)])


def kubectl_patch(option: Option, deployment: str = DEPLOYMENT) -> str:
    """The same for a Deployment whose first container has vLLM's arguments: of a flag given twice
    vLLM takes the last one, so the flags are added behind those that are there."""
    path = "/spec/template/spec/containers/0/args/-"
    patch = [
        {"op": "replace", "path": "/spec/replicas", "value": option.replicas},
        *({"op": "add", "path": path, "value": flag} for flag in serve_flags(option.setting)),
    ]
    return (
        f"kubectl patch deployment {shlex.quote(deployment)} --type=json"
        f" -p {shlex.quote(json.dumps(patch))}"
    )
