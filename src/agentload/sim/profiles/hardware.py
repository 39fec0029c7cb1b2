"""Step cost and KV cache size derived from data sheets."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from agentload.sim.core import StepCost

MIB = 2**20


class ProfileError(ValueError):
    """A GPU, model or version that has no profile, or a model that does not fit."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator; rates per second, `link_bytes_per_s` to its peers in one direction."""

    name: str
    bf16_flops_per_s: float
    memory_bytes_per_s: float
    memory_mib: int
    link_bytes_per_s: float
    source: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB


@dataclass(frozen=True, slots=True)
class Model:
    """Shape of a model; `attention_layers` are those whose KV grows with the context."""

    name: str
    aliases: tuple[str, ...]
    parameters: float
    active_parameters: float
    attention_layers: int
    layers: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    max_position_embeddings: int
    weight_bytes: dict[str, float]
    source: str
    experts: int = 0
    experts_per_token: int = 0


@cache
def data(name: str) -> Any:
    """A JSON file of the package's `data` folder."""
    file = resources.files("agentload.sim.profiles") / "data" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def assumption(name: str) -> float:
    """A value no data sheet states."""
    return float(data("assumptions")["values"][name])


def gpu(name: str) -> Gpu:
    """The data sheet of a GPU. Raises ProfileError naming the known ones."""
    sheets = data("gpus")["gpus"]
    if name not in sheets:
        raise ProfileError(f"gpu {name!r} has no profile; known: {', '.join(sheets)}")
    return Gpu(name=name, **sheets[name])


def model(name: str) -> Model:
    """The shape of a model, by its name here or on the hub. Raises ProfileError."""
    sheets = data("models")["models"]
    for key, sheet in sheets.items():
        if name == key or name in sheet["aliases"]:
            return Model(name=key, **{**sheet, "aliases": tuple(sheet["aliases"])})
    raise ProfileError(f"model {name!r} has no profile; known: {', '.join(sheets)}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on `tensor_parallel` GPUs with weights in one format."""

    gpu: Gpu
    model: Model
    tensor_parallel: int = 1
    weights: str = ""  # empty: the model's first format

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise ProfileError(f"tensor_parallel={self.tensor_parallel} must be at least 1")
        if self.weights and self.weights not in self.model.weight_bytes:
            known = ", ".join(self.model.weight_bytes)
            raise ProfileError(f"{self.model.name} has no weights {self.weights!r}; known: {known}")

    @property
    def weight_format(self) -> str:
        return self.weights or next(iter(self.model.weight_bytes))

    @property
    def _bytes_per_parameter(self) -> float:
        return self.model.weight_bytes[self.weight_format]

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache bytes of one token over all GPUs."""
        shape = self.model
        elements = 2 * shape.attention_layers * shape.kv_heads * shape.head_dim
        return elements * assumption("kv_bytes_per_element")

    def kv_tokens(self, gpu_memory_utilization: float) -> int:
        """Tokens that fit in the KV cache. Raises ProfileError when the weights do not fit."""
        spare = (
            self.gpu.memory_bytes * gpu_memory_utilization - assumption("memory_overhead_bytes")
        ) * self.tensor_parallel - self.model.parameters * self._bytes_per_parameter
        if spare < self.kv_bytes_per_token:
            raise ProfileError(
                f"{self.model.name} in {self.weight_format} does not fit on "
                f"{self.tensor_parallel} x {self.gpu.name} at utilization {gpu_memory_utilization}"
            )
        return int(spare // self.kv_bytes_per_token)

    def step_cost(self) -> StepCost:
        """The linear step cost that the data sheets suggest."""
        shape, ways = self.model, self.tensor_parallel
        flops = self.gpu.bf16_flops_per_s * ways
        bandwidth = self.gpu.memory_bytes_per_s * ways * assumption("bandwidth_efficiency")
        efficiency = assumption("expert_efficiency" if shape.experts else "dense_efficiency")
        attention = 4 * shape.query_heads * shape.head_dim * shape.attention_layers
        return StepCost(
            c0=assumption("step_overhead_s")
            + self._parameters_read() * self._bytes_per_parameter / bandwidth
            + self._all_reduce_latency_s(),
            c1=2 * shape.active_parameters / (flops * efficiency) + self._all_reduce_s_per_token(),
            c2=assumption("sequence_overhead_s"),
            c3=self.kv_bytes_per_token / bandwidth,
            c4=attention / (flops * assumption("attention_efficiency")),
        )

    def _parameters_read(self) -> float:
        """Parameters a decode step reads: all, or those of the experts that its tokens touch."""
        shape = self.model
        if not shape.experts:
            return shape.parameters
        sequences = assumption("sequences_touching_experts")
        untouched = math.pow(1 - shape.experts_per_token / shape.experts, sequences)
        shared = shape.active_parameters
        return shared + (1 - untouched) * (shape.parameters - shared)

    def _all_reduce_latency_s(self) -> float:
        if self.tensor_parallel == 1:
            return 0.0
        return 2 * self.model.layers * assumption("all_reduce_latency_s")

    def _all_reduce_s_per_token(self) -> float:
        ways = self.tensor_parallel
        moved = 2 * self.model.layers * self.model.hidden_size * 2 * 2 * (ways - 1) / ways
        return moved / (self.gpu.link_bytes_per_s * assumption("link_efficiency"))
