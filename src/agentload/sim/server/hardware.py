"""Step cost and cache size of one model on one GPU, from data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agentload.sim.core import StepCost

GPUS: Final = {
    "A100-40G": (312e12, 1.555e12, 40960 << 20, 2048, 256),
    "A100-80G": (312e12, 2.039e12, 81920 << 20, 2048, 256),
    "H100-80G": (989e12, 3.35e12, 81559 << 20, 8192, 1024),
    "H200-141G": (989e12, 4.8e12, 143771 << 20, 8192, 1024),
}
MODELS: Final = {"Qwen2.5-7B": (7.62e9, 7.07e9, 28, 28, 4, 128, 32768)}


@dataclass(frozen=True, slots=True)
class Hardware:
    cost: StepCost
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


def load(gpu: str, model: str, utilization: float) -> Hardware:
    flops, bandwidth, memory, budget, seqs = GPUS[gpu]
    total, active, layers, heads, kv_heads, head_dim, model_len = MODELS[model]
    kv_bytes = 2 * layers * kv_heads * head_dim * 2
    cost = StepCost(
        0.002 + 2 * total / (bandwidth * 0.8),
        2 * active / (flops * 0.55),
        1.5e-5,
        kv_bytes / (bandwidth * 0.8),
        4 * heads * head_dim * layers / (flops * 0.5),
    )
    tokens = (memory * utilization - total * 2 - 3e9) // kv_bytes
    return Hardware(cost, int(tokens) // 16, budget, seqs, model_len)
