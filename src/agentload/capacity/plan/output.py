"""A plan as JSON, and as lines in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agentload.capacity.plan.demand import Demand
from agentload.capacity.plan.flags import kubectl_patch, serve_command, serve_flags
from agentload.capacity.plan.inputs import version_warning
from agentload.capacity.plan.planning import Interval, Option, Plan, binding
from agentload.capacity.plan.search import GROUP, Setting
from agentload.capacity.plan.slo import Target, in_words
from agentload.sim.profiles import CostFile

SCHEMA = "agentload.plan/1"


def as_json(plan: Plan) -> str:
    """Everything the plan holds; a figure that is missing had too few turns."""
    question = plan.question
    document = {
        "schema": SCHEMA,
        "sessions": question.sessions,
        "developers": question.developers,
        "demand": plan.demand.name,
        "target": {
            "share_of_turns": plan.target.share,
            "p_meets_wanted": question.wanted,
            "slos": {k: v.model_dump(exclude_none=True) for k, v in plan.target.slos.items()},
        },
        "routing": question.routing,
        "draws": question.draws,
        "seed": question.seed,
        "best": None if plan.best is None else _option(plan, plan.best),
        "default_settings": None if plan.as_it_is is None else _option(plan, plan.as_it_is),
        "options": [_option(plan, option) for option in plan.options],
        "pareto": [[option.rank, option.p_meets] for option in plan.front],
        "routings": [_option(plan, option) for option in plan.routings],
        "curve": [asdict(point) for point in plan.curve],
        "looked_at": [{**_knobs(setting), "sessions": most} for setting, most in plan.looked_at],
        "simulations": plan.simulations,
        "warnings": warnings(plan),
        "not_modelled": not_modelled(plan),
    }
    return json.dumps(document, indent=2) + "\n"


def _option(plan: Plan, option: Option) -> dict[str, Any]:
    return {
        **_knobs(option.setting),
        "replicas": option.replicas,
        "gpus": option.gpus,
        "sessions_per_replica": option.sessions_per_replica,
        "cost_per_hour": option.cost_per_hour,
        "cost_per_hour_and_developer": per_developer(plan, option),
        "p_meets": option.p_meets,
        "draws": option.draws,
        "good_shares": option.good_shares,
        "figures": {name: asdict(interval) for name, interval in sorted(option.figures.items())},
        "kv_pressure": option.kv_pressure,
        "sessions_that_fit": option.sessions_that_fit,
        "flags": serve_flags(option.setting),
    }


def _knobs(setting: Setting) -> dict[str, Any]:
    return {
        "hardware": setting.hardware.name,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "long_prefill_token_threshold": setting.long_prefill_token_threshold,
        "routing": setting.routing,
    }


def per_developer(plan: Plan, option: Option) -> float | None:
    """Money per hour for each developer, or for each session where developers are not given."""
    cost = option.cost_per_hour
    return None if cost is None else cost / (plan.question.developers or plan.question.sessions)


def warnings(plan: Plan) -> list[str]:
    """What makes the plan less sure than its intervals say."""
    found = unchecked_limits(plan.target, plan.demand)
    files = {s.hardware.name: s.hardware.cost_file for s, _ in plan.looked_at}
    for name, file in files.items():
        provenances = {file.coefficient(c).provenance for c in ("c0", "c1", "c3", "c4")}
        if provenances <= {"data sheet", "prior only"}:
            found.append(f"{name}: prior only, nothing of it was measured (agentload calibrate)")
        elif file.not_measured:
            found.append(f"{name}: prior only: {', '.join(file.not_measured)}")
        depth = file.depth_tokens
        if depth and depth < 0.8 * plan.demand.longest_tokens:
            found.append(
                f"{name}: measured down to {depth:,} tokens, and contexts reach"
                f" {plan.demand.longest_tokens:,}: extrapolated"
            )
        mine = [option.setting for option in plan.options if option.setting.hardware.name == name]
        steps = unmeasured_steps([setting.max_num_batched_tokens for setting in mine], file)
        found += [f"{name}: {text}" for text in (steps, version_warning(file)) if text]
    return found


def unmeasured_steps(budgets: Sequence[int], file: CostFile) -> str:
    """That steps may hold more tokens than any the calibration saw; empty when none do."""
    measured, most = file.in_force.max_num_batched_tokens, max(budgets, default=0)
    if measured is None or most <= measured:
        return ""
    return (
        f"steps of more than {measured:,} tokens were not measured, and an option has"
        f" --max-num-batched-tokens={most}: extrapolated"
    )


def unchecked_limits(target: Target, demand: Demand) -> list[str]:
    """Of the classes that have limits and no turns: that nothing was held against them."""
    there = {turn.turn_class for session in demand.sessions for turn in session.turns}
    return [
        f"{name}: no turn of this class is in the plan, so its limits were not checked"
        for name in target.slos
        if name not in there
    ]


def not_modelled(plan: Plan) -> list[str]:
    """What the plan leaves out: of the engine, then of the workload."""
    files = {id(s.hardware.cost_file): s.hardware.cost_file for s, _ in plan.looked_at}
    engine = dict.fromkeys(text for file in files.values() for text in file.not_modelled)
    return [*engine, *plan.demand.left_out, "network and client time before the API server"]


def show(plan: Plan, console: Console) -> None:
    """The answer first, then what it rests on."""
    for line in answer(plan):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(_options_table(plan))
    if plan.routings:
        console.print(_routing_table(plan))
    for text in warnings(plan):
        console.print(f"warning: {text}", markup=False, highlight=False)
    text = ", ".join(not_modelled(plan))
    console.print(f"Not modelled: {text}.", markup=False, highlight=False)


def answer(plan: Plan) -> Iterator[str]:
    """The plan in sentences: what to run, how sure, how far from the cliff, what to type."""
    question, best = plan.question, plan.best
    limits = "; ".join(f"{name} {in_words(slo)}" for name, slo in plan.target.slos.items())
    who = f"{question.sessions:,} sessions at once"
    if question.developers:
        who = f"{question.developers:,} developers, {who}"
    yield f"{who} of {plan.demand.name}; {plan.target.share:.0%} of turns within: {limits}"
    if best is None:
        yield from _no_answer(plan)
        return
    cost, each = "", per_developer(plan, best)
    if best.cost_per_hour is not None and each is not None:
        whom = "developer" if question.developers else "session"
        cost = f", {best.cost_per_hour:,.2f} an hour ({each:.4f} per {whom})"
    yield (
        f"Run {best.replicas} x {best.setting.hardware.name}{cost}: P(meets) {best.p_meets:.2f}"
        f" of {best.draws} draws, {best.sessions_per_replica} sessions a replica, routing"
        f" {best.setting.routing}."
    )
    bound = binding(plan.target, best)
    if bound:
        yield f"The tightest limit: {bound}."
    yield _cliff(best)
    if plan.as_it_is is not None and plan.as_it_is.setting != best.setting:
        yield (
            "With the default settings and as many replicas P(meets) is"
            f" {plan.as_it_is.p_meets:.2f}: {binding(plan.target, plan.as_it_is)}."
        )
    yield serve_command(best.setting)
    yield kubectl_patch(best)


def _no_answer(plan: Plan) -> Iterator[str]:
    yield (
        f"Nothing that was tried meets this with P >= {plan.question.wanted:g}, not even one"
        " session a replica."
    )
    for option in plan.options:
        bound = binding(plan.target, option)
        yield f"{option.setting.hardware.name}: P(meets) {option.p_meets:.2f}; {bound}"
    yield "Ease the limits (--slo, --share), take faster GPUs, or calibrate: priors are wide."


def _cliff(option: Option) -> str:
    fit = option.sessions_that_fit
    return (
        f"The cliff: {fit:.1f} sessions fit in the KV cache of a replica,"
        f" {option.sessions_per_replica} are planned (pressure {option.kv_pressure:.2f}); with"
        f" {max(0.0, fit / option.sessions_per_replica - 1):.0%} more sessions they evict each"
        " other."
    )


def _options_table(plan: Plan) -> Table:
    table = _table("Options, cheapest first", ("run", "each", "cost/h"))
    for option in plan.options:
        cost = "-" if option.cost_per_hour is None else money(option.cost_per_hour)
        run = f"{option.replicas} x {option.setting.hardware.name}"
        table.add_row(run, str(option.sessions_per_replica), cost, *cells(option, interval=False))
    return table


def money(cost: float) -> str:
    """Hundredths only where they matter, so that the column stays narrow."""
    return f"{cost:,.2f}" if cost < 100 else f"{cost:,.0f}"


def _routing_table(plan: Plan) -> Table:
    table = _table(f"Routing, {GROUP} replicas played together", ("routing",))
    for option in plan.routings:
        table.add_row(option.setting.routing, *cells(option, interval=False))
    return table


def _table(title: str, first: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0, pad_edge=False)
    for name in (*first, "P(meets)", "TTFT P50", "TTFT P99", "cold P50", "ITL P99", "hit"):
        left = name in ("run", "routing")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def cells(option: Option, *, interval: bool) -> list[str]:
    """P(meets), then medians over the draws, with their middle 90 % where `interval` wants it;
    TTFT is of all turns but cold ones."""
    found = option.figures
    hit = found.get("hit_ratio")
    names = ("later.ttft_p50_s", "later.ttft_p99_s", "cold.ttft_p50_s", "itl_p99_s")
    return [
        f"{option.p_meets:.2f}",
        *(seconds(found.get(name), interval=interval) for name in names),
        "-" if hit is None else f"{hit.median:.3f}",
    ]


def seconds(value: Interval | None, *, interval: bool = True) -> str:
    """Median, and the middle 90 % in the same unit unless it is not wanted; "-" for none."""
    if value is None:
        return "-"
    factor, digits, unit = (1e3, 0, "ms") if abs(value.median) < 1 else (1, 2, "s")
    median, low, high = (f"{factor * v:.{digits}f}" for v in (value.median, value.low, value.high))
    if not interval:
        return f"{median} {unit}"
    return f"{median} ({low}..{high}) {unit}"
