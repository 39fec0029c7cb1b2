"""One knob changed, everything else as it is: what the same sessions would see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agentload.capacity.plan.demand import Demand
from agentload.capacity.plan.inputs import PlanInputError
from agentload.capacity.plan.output import seconds
from agentload.capacity.plan.planning import Interval, Option, Question, figures, option
from agentload.capacity.plan.routing import ROUTINGS
from agentload.capacity.plan.search import Bench, Hardware, Setting, Tried, replicas_for, spread
from agentload.capacity.plan.slo import Target
from agentload.sim.core import ConfigError, EngineConfig

KNOBS = {
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "long_prefill_token_threshold": int,
    "enable_chunked_prefill": bool,
    "enable_prefix_caching": bool,
    "num_blocks": int,
    "routing": str,
    "replicas": int,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Today and after the change; `differences` are paired: same draw, same sessions."""

    changes: Mapping[str, Any]
    today: Option
    changed: Option
    differences: dict[str, Interval]


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """`KNOB=VALUE` texts. Raises PlanInputError with every fault."""
    changes: dict[str, Any] = {}
    faults = []
    for text in texts:
        name, _, value = text.partition("=")
        try:
            changes[name] = _value(KNOBS[name], value)
        except (KeyError, ValueError):
            faults.append(
                f"{text}: allowed is KNOB=VALUE with KNOB of {', '.join(KNOBS)};"
                f" whole numbers, true or false, routing of {', '.join(ROUTINGS)}"
            )
    if faults:
        raise PlanInputError("\n".join(faults))
    return changes


def parse_engine(
    config: EngineConfig, found: Mapping[str, Any], texts: Sequence[str]
) -> EngineConfig:
    """`config` with what was `found` and with `KNOB=VALUE` texts over it. PlanInputError."""
    changes = {k: v for k, v in parse_changes(texts).items() if k not in ("routing", "replicas")}
    try:
        return replace(config, **{**found, **changes})
    except ConfigError as error:
        raise PlanInputError(str(error)) from error


def _value(kind: type, text: str) -> Any:
    if kind is bool:
        return {"true": True, "on": True, "false": False, "off": False}[text.lower()]
    if kind is int:
        if not text.isdecimal():
            raise ValueError(text)
        return int(text)
    if text not in ROUTINGS:
        raise ValueError(text)
    return text


def compare(
    question: Question,
    demand: Demand,
    target: Target,
    hardware: Hardware,
    changes: Mapping[str, Any],
    replicas: int,
    *,
    least_turns: int,
) -> Comparison:
    """Play the sessions with and without the changes. Raises PlanInputError for settings that
    vLLM refuses."""
    bench = Bench(demand, target, question.seed, least_turns, lambda _: None)
    today = Setting.default(hardware, question.routing)
    users = replicas_for(question.sessions, replicas)
    new_users = replicas_for(question.sessions, changes.get("replicas", replicas))
    before = bench.tried(today, users, question.draws)
    after = bench.tried(_changed(today, changes), new_users, question.draws)
    return Comparison(
        changes,
        option(demand, before, question.sessions),
        option(demand, after, question.sessions),
        _differences(before, after),
    )


def _changed(setting: Setting, changes: Mapping[str, Any]) -> Setting:
    engine = {k: v for k, v in changes.items() if k not in ("routing", "replicas")}
    try:
        config = replace(setting.hardware.config, **engine)
    except ConfigError as error:
        raise PlanInputError(f"--what-if: {error}") from error
    hardware = replace(setting.hardware, config=config)
    return Setting.default(hardware, changes.get("routing", setting.routing))


def _differences(before: Tried, after: Tried) -> dict[str, Interval]:
    rows: dict[str, list[float]] = {}
    for old, new in zip(before.played, after.played, strict=True):
        was, now = figures([old]), figures([new])
        for name in was.keys() & now.keys():
            rows.setdefault(name, []).append(now[name].median - was[name].median)
    half = len(before.played) / 2
    return {name: Interval(*spread(v)) for name, v in sorted(rows.items()) if len(v) >= half}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """A row for each figure: today, changed, the difference."""
    today, changed = comparison.today, comparison.changed
    said = ", ".join(f"{name}={value}" for name, value in comparison.changes.items())
    console.print(
        f"{today.setting.hardware.name}, {today.replicas} replicas, {said}:"
        f" P(meets) {today.p_meets:.2f} -> {changed.p_meets:.2f}"
        f" ({today.draws} draws; KV pressure {today.kv_pressure:.2f} -> {changed.kv_pressure:.2f})",
        markup=False,
        highlight=False,
    )
    table = Table(box=SIMPLE, padding=0, pad_edge=False)
    for name in ("figure", "today", "changed", "difference (middle 90 %)"):
        left = name == "figure"
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for name, difference in comparison.differences.items():
        show = seconds if name.endswith("_s") and "tokens" not in name else _plain
        medians = (today.figures.get(name), changed.figures.get(name))
        table.add_row(name, *(show(m, interval=False) for m in medians), show(difference))
    console.print(table)


def _plain(value: Interval | None, *, interval: bool = True) -> str:
    if value is None:
        return "-"
    if not interval:
        return f"{value.median:.3g}"
    return f"{value.median:.3g} ({value.low:.3g}..{value.high:.3g})"
