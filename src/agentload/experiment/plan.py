"""What an experiment file says, checked before anything is started."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Flag = bool | int | float | str

CHUNKED = "enable-chunked-prefill"
BUDGET = "max-num-batched-tokens"
MODEL_LEN = "max-model-len"
OF_SCENARIO = "scenario."  # before a scenario's key in `vary`
OF_OVERLAY = "overlay."  # before what differs between overlays besides the server's flags


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class AnyTarget(Strict):
    """What all kinds of targets have. `dcgm_url` is the page of a DCGM exporter beside the server;
    `probe` says whether chunked prefill is tried out before each load."""

    flags: dict[str, Flag] = {}
    dcgm_url: str | None = None
    probe: bool = True


class EmbeddedTarget(AnyTarget):
    """The simulator of this package, started anew for every cell."""

    kind: Literal["embedded"]
    cpus: str | None = None  # as in `taskset --cpu-list`; the load gets the others


class CommandTarget(AnyTarget):
    """A server started by a command; `{port}` in it is a free port, the arm's flags come after."""

    kind: Literal["command"]
    command: list[str] = Field(min_length=1)
    model: str
    ready_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    cpus: str | None = None


class UrlTarget(AnyTarget):
    """Servers that are there already; each arm names its own base URL."""

    kind: Literal["url"]
    model: str


class KubernetesTarget(AnyTarget):
    """A server that `kubectl apply -k` makes of each arm's overlay, and that is deleted after.

    Without a `base_url` it is reached by `kubectl port-forward` to the overlay's Service.
    """

    kind: Literal["kubernetes"]
    namespace: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    model: str | None = None  # None: the only one that is served
    context: str | None = None  # of kubectl; None: the current one
    base_url: str | None = None
    ready_timeout_s: float = Field(default=1800.0, gt=0, le=86_400)


Target = Annotated[
    EmbeddedTarget | CommandTarget | UrlTarget | KubernetesTarget, Field(discriminator="kind")
]


class Arm(Strict):
    """One configuration: its flags are added to the target's, its keys to the `overrides`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,40}$")
    flags: dict[str, Flag] = {}
    base_url: str | None = None
    overlay: str | None = None  # folder of a kustomization, relative to the experiment file
    scenario: dict[str, JsonValue] = {}  # dotted key of the scenario -> value


class Experiment(Strict):
    """An experiment file. `vary` names the flags in which the arms are meant to differ, the keys of
    the scenario as `scenario.KEY`, and the rest of an overlay as `overlay.PATH`. `accept` names
    settings that the servers tell and that may differ from arm to arm without being meant to."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,60}$")
    description: str = ""
    scenario: str
    overrides: dict[str, JsonValue] = {}  # dotted key of the scenario -> value, in all arms
    target: Target
    arms: list[Arm] = Field(min_length=1)
    vary: list[str] = []
    accept: list[str] = []
    seeds: list[int] = Field(default=[1], min_length=1, max_length=100)
    blocks: int = Field(default=1, ge=1, le=100)
    order_seed: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one arm: the unit that is finished, or run again when an experiment is resumed."""

    index: int
    block: int
    seed: int
    arm: Arm

    @property
    def run_id(self) -> str:
        return f"{self.index + 1:02d}-b{self.block + 1}-s{self.seed}-{self.arm.name}"


def cells(experiment: Experiment) -> tuple[Cell, ...]:
    """Every arm once per block and seed, in an order shuffled within each block.

    Interleaving keeps a drift of the machine from falling on one arm; the order is drawn from
    `order_seed`, so a resumed experiment goes on in the same one.
    """
    order = random.Random(experiment.order_seed)
    planned: list[Cell] = []
    for block in range(experiment.blocks):
        for seed in experiment.seeds:
            arms = list(experiment.arms)
            order.shuffle(arms)
            for arm in arms:
                planned.append(Cell(len(planned), block, seed, arm))
    return tuple(planned)


def flags_of(experiment: Experiment, arm: Arm) -> dict[str, Flag]:
    """The server flags of an arm, with the token budget that chunked prefill off needs."""
    flags = {**experiment.target.flags, **arm.flags}
    budget = token_budget(flags.get(CHUNKED, True), flags.get(BUDGET), flags.get(MODEL_LEN)).written
    return flags if budget is None else {**flags, BUDGET: budget}


@dataclass(frozen=True, slots=True)
class Budget:
    """What is decided about one arm's token budget: `ok`, `set` (by the plan) or `reject`."""

    verdict: Literal["ok", "set", "reject"]
    written: int | None


def token_budget(chunked: Flag, budget: Flag | None, max_model_len: Flag | None) -> Budget:
    """vLLM's rule: without chunked prefill a whole prompt must fit into one step.

    A server started against the rule ends at once with a validation error (vLLM 0.16+,
    `SchedulerConfig`), so a budget below `max_model_len` is refused here and a missing one set.
    """
    if budget is not None and not isinstance(budget, bool) and isinstance(budget, int):
        below = isinstance(max_model_len, int) and budget < max_model_len
        return Budget("reject", None) if not chunked and below else Budget("ok", budget)
    if not chunked and isinstance(max_model_len, int):
        return Budget("set", max_model_len)
    return Budget("ok", None)


def differences(experiment: Experiment) -> dict[str, set[Flag | None]]:
    """Flags and keys of the scenario whose value is not the same in all arms, with the values."""
    flags = [{**flags_of(experiment, arm), **_keys_of(arm)} for arm in experiment.arms]
    names = {name for one in flags for name in one}
    values = {name: {one.get(name) for one in flags} for name in sorted(names)}
    return {name: found for name, found in values.items() if len(found) > 1}


def _keys_of(arm: Arm) -> dict[str, Flag]:
    return {OF_SCENARIO + key: json.dumps(value) for key, value in arm.scenario.items()}
