"""What an experiment file says, checked before anything is started."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Flag = bool | int | float | str

CHUNKED = "enable-chunked-prefill"
BUDGET = "max-num-batched-tokens"
MODEL_LEN = "max-model-len"
SECRET_FLAGS = {"api-key", "hf-token"}
OF_SCENARIO = "scenario."  # before a scenario's key in `vary`


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EmbeddedTarget(Strict):
    """The simulator of this package, started anew for every cell."""

    kind: Literal["embedded"]
    flags: dict[str, Flag] = {}


class CommandTarget(Strict):
    """A server started by a command; `{port}` in it is a free port, the arm's flags come after."""

    kind: Literal["command"]
    command: list[str] = Field(min_length=1)
    model: str
    flags: dict[str, Flag] = {}
    ready_timeout_s: float = Field(default=600.0, gt=0)


class UrlTarget(Strict):
    """Servers that are there already; each arm names its own base URL."""

    kind: Literal["url"]
    model: str
    flags: dict[str, Flag] = {}


Target = Annotated[EmbeddedTarget | CommandTarget | UrlTarget, Field(discriminator="kind")]


class Arm(Strict):
    """One configuration: its flags are added to the target's, its keys to the `overrides`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,40}$")
    flags: dict[str, Flag] = {}
    base_url: str | None = None
    scenario: dict[str, JsonValue] = {}  # dotted key of the scenario -> value


class Experiment(Strict):
    """An experiment file. `vary` names the flags in which the arms are meant to differ, and the
    keys of the scenario as `scenario.KEY`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,60}$")
    description: str = ""
    scenario: str
    overrides: dict[str, JsonValue] = {}  # dotted key of the scenario -> value, in all arms
    target: Target
    arms: list[Arm] = Field(min_length=1)
    vary: list[str] = []
    seeds: list[int] = Field(default=[1], min_length=1)
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


def faults(experiment: Experiment, folder: Path) -> list[str]:
    """Everything wrong with the plan that single fields cannot tell; empty when it can be run."""
    return [
        *_scenario_faults(experiment, folder),
        *_name_faults(experiment),
        *_url_faults(experiment),
        *_secret_faults(experiment),
        *_budget_faults(experiment),
        *_seed_faults(experiment),
        *_difference_faults(experiment),
    ]


def _scenario_faults(experiment: Experiment, folder: Path) -> list[str]:
    path = folder / experiment.scenario
    return [] if path.is_file() else [f"scenario: {experiment.scenario}: no such file ({path})"]


def _name_faults(experiment: Experiment) -> list[str]:
    counts = Counter(arm.name for arm in experiment.arms)
    return [f"arms: the name {n!r} is given {c} times" for n, c in counts.items() if c > 1]


def _seed_faults(experiment: Experiment) -> list[str]:
    places = [("overrides", experiment.overrides)]
    places += [(f"arms.{arm.name}.scenario", arm.scenario) for arm in experiment.arms]
    return [f"{place}: seed is set by `seeds`" for place, keys in places if "seed" in keys]


def _url_faults(experiment: Experiment) -> list[str]:
    is_url = experiment.target.kind == "url"
    wrong = [arm.name for arm in experiment.arms if (arm.base_url is not None) != is_url]
    need = "needs a base_url" if is_url else "has a base_url, which only target kind 'url' takes"
    return [f"arms.{name}: {need}" for name in wrong]


def _secret_faults(experiment: Experiment) -> list[str]:
    """Flags are recorded and stand in the process list, so no key may be among them."""
    places = [("target", experiment.target.flags)]
    places += [(f"arms.{arm.name}", arm.flags) for arm in experiment.arms]
    return [
        f"{place}.flags.{name}: a key does not belong into a file or a command line; set"
        " VLLM_API_KEY for the server and OPENAI_API_KEY for the load in the environment"
        for place, flags in places
        for name in flags
        if name.strip("-").replace("_", "-") in SECRET_FLAGS
    ]


def _budget_faults(experiment: Experiment) -> list[str]:
    found = []
    for arm in experiment.arms:
        flags = {**experiment.target.flags, **arm.flags}
        chunked, budget, length = flags.get(CHUNKED, True), flags.get(BUDGET), flags.get(MODEL_LEN)
        if token_budget(chunked, budget, length).verdict == "reject":
            found.append(
                f"arms.{arm.name}: {BUDGET} is {budget}, below {MODEL_LEN} {length}, and chunked"
                " prefill is off: the server would refuse to start; raise the budget to at least"
                f" {length} or leave it out"
            )
    return found


def _difference_faults(experiment: Experiment) -> list[str]:
    """Arms may differ only in what `vary` names: anything else would be compared unseen."""
    if experiment.target.kind == "url":  # its servers' flags are not ours to know
        return []
    allowed = set(experiment.vary)
    found = [
        f"arms: they differ in {name!r} ({', '.join(sorted(map(str, values)))}), which `vary` does"
        f" not name; vary is {sorted(allowed)}. Give it one value in all arms (target.flags,"
        " overrides), or add it to `vary`"
        for name, values in differences(experiment).items()
        if name not in allowed
    ]
    unchanged = sorted(allowed - differences(experiment).keys())
    return found + [f"vary: {name!r} is the same in every arm" for name in unchanged]


def differences(experiment: Experiment) -> dict[str, set[Flag | None]]:
    """Flags and keys of the scenario whose value is not the same in all arms, with the values."""
    flags = [{**flags_of(experiment, arm), **_keys_of(arm)} for arm in experiment.arms]
    names = {name for one in flags for name in one}
    values = {name: {one.get(name) for one in flags} for name in sorted(names)}
    return {name: found for name, found in values.items() if len(found) > 1}


def _keys_of(arm: Arm) -> dict[str, Flag]:
    return {OF_SCENARIO + key: json.dumps(value) for key, value in arm.scenario.items()}
