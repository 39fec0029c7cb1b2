"""What to run for so many sessions: the cheapest settings that meet the limits, and how sure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentload.capacity.plan.demand import Demand
from agentload.capacity.plan.fleet import Played, percentile
from agentload.capacity.plan.routing import ROUTINGS, Routing
from agentload.capacity.plan.search import (
    Bench,
    Found,
    Hardware,
    Setting,
    Tried,
    best_setting,
    replicas_for,
    spread,
    with_confidence,
)
from agentload.capacity.plan.slo import Target, in_words

CURVE = (0.2, 0.4, 0.6, 0.8, 1.0, 1.15, 1.4)  # sessions a replica, beside those that fit
CURVE_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Interval:
    """Median over the draws, and their middle 90 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: sessions at once, how sure, with which rule of routing."""

    sessions: int
    developers: int | None
    wanted: float
    draws: int
    routing: Routing
    seed: int


@dataclass(frozen=True, slots=True)
class Option:
    """A setting with its replicas, and what the draws say about it.

    `figures` are intervals by name: "tool.ttft_p99_s" and so on per turn class, "itl_p99_s",
    "hit_ratio", "output_tokens_per_s" (one replica). A name is missing where turns were too few.
    `good_shares` has the median share of good turns per class. `kv_pressure` is what the sessions
    of a replica hold / what fits; above 1 the cache loses sessions: the cliff.
    """

    setting: Setting
    sessions_per_replica: int
    replicas: int
    p_meets: float
    draws: int
    figures: dict[str, Interval]
    good_shares: dict[str, float]
    kv_pressure: float
    sessions_that_fit: float

    @property
    def gpus(self) -> int:
        return self.replicas * self.setting.hardware.gpus

    @property
    def cost_per_hour(self) -> float | None:
        price = self.setting.hardware.gpu_price
        return None if price is None else self.gpus * price

    @property
    def rank(self) -> float:
        """What cheaper means: money, or GPUs where no price is given."""
        return self.gpus if self.cost_per_hour is None else self.cost_per_hour


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """P99 TTFT of all turns but cold ones at so many sessions a replica."""

    sessions_per_replica: int
    ttft_p99_s: Interval | None
    p_meets: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `best` is None when nothing that was tried is sure enough; then `options` still
    says how near each came. `as_it_is` has the default settings at as many sessions a replica as
    `best`; `routings` the other rules of routing there."""

    question: Question
    demand: Demand
    target: Target
    options: tuple[Option, ...]
    best: Option | None
    as_it_is: Option | None
    routings: tuple[Option, ...]
    curve: tuple[CurvePoint, ...]
    looked_at: tuple[tuple[Setting, int], ...]
    simulations: int

    @property
    def front(self) -> tuple[Option, ...]:
        """Options that no other beats in both cost and P(meets), cheapest first."""
        ordered = sorted(self.options, key=lambda option: (option.rank, -option.p_meets))
        front: list[Option] = []
        for option in ordered:
            if not front or option.p_meets > front[-1].p_meets:
                front.append(option)
        return tuple(front)


def make_plan(
    question: Question,
    demand: Demand,
    target: Target,
    hardware: Sequence[Hardware],
    *,
    least_turns: int = 600,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Search every kind of replica, then say what the best one does beyond its limits."""
    bench = Bench(demand, target, question.seed, least_turns, progress)
    looked: list[tuple[Setting, int]] = []
    options: list[Option] = []
    for kind in hardware:
        found = best_setting(bench, kind, question.routing)
        looked.extend(found.looked_at)
        options.extend(_options(bench, found, question))
    sure = [option for option in options if option.p_meets >= question.wanted]
    best = min(sure, key=lambda option: (option.rank, -option.p_meets), default=None)
    shown = best or max(options, key=lambda option: option.p_meets, default=None)
    return Plan(
        question=question,
        demand=demand,
        target=target,
        options=tuple(sorted(options, key=lambda o: (o.rank, -o.p_meets))),
        best=best,
        as_it_is=_default(bench, best, question) if best else None,
        routings=tuple(_routings(bench, best, question)) if best else (),
        curve=tuple(_curve(bench, shown)) if shown else (),
        looked_at=tuple(looked),
        simulations=bench.simulations,
    )


def _options(bench: Bench, found: Found, question: Question) -> list[Option]:
    """The setting at the most sessions it surely carries, and with some more and fewer replicas."""
    tried = with_confidence(bench, found, question.draws, question.wanted)
    sure = [t.users for t in tried if t.p_meets >= question.wanted]
    least = replicas_for(question.sessions, max(sure)) if sure else None
    if least is None:
        lone = bench.tried(found.best, 1, question.draws)
        return [option(bench.demand, lone, question.sessions)]
    counts = {least, least + 1, max(1, least - 1), max(1, round(least * 0.8))}
    users = {replicas_for(question.sessions, count) for count in counts}
    options = {}
    for number in sorted(users):
        bench.progress(f"{found.best.hardware.name}: {number} sessions a replica in full")
        made = option(
            bench.demand, bench.tried(found.best, number, question.draws), question.sessions
        )
        options[made.replicas] = made
    return list(options.values())


def option(demand: Demand, tried: Tried, sessions: int) -> Option:
    """What was tried, as an option for so many sessions."""
    hardware = tried.setting.hardware
    held = tried.users * demand.held_tokens + demand.shared_tokens
    return Option(
        setting=tried.setting,
        sessions_per_replica=tried.users,
        replicas=replicas_for(sessions, tried.users),
        p_meets=tried.p_meets,
        draws=len(tried.met),
        figures=figures(tried.played),
        good_shares={
            name: spread([share[name] for share in tried.good_shares if name in share])[0]
            for name in {name for share in tried.good_shares for name in share}
        },
        kv_pressure=held / hardware.kv_tokens,
        sessions_that_fit=hardware.sessions_that_fit(demand),
    )


def figures(played: Sequence[Played]) -> dict[str, Interval]:
    """Intervals over the draws of every figure that enough draws have."""
    rows: dict[str, list[float]] = {}
    for one in played:
        for name, value in _figures(one).items():
            rows.setdefault(name, []).append(value)
    half = len(played) / 2
    return {name: Interval(*spread(values)) for name, values in rows.items() if len(values) >= half}


def _figures(played: Played) -> dict[str, float]:
    values: dict[str, float | None] = {
        "itl_p50_s": played.itl.quantile(0.5),
        "itl_p99_s": played.itl.quantile(0.99),
        "hit_ratio": played.hit_ratio,
        "output_tokens_per_s": played.tokens_per_s,
    }
    groups = {name: played.of_class(name) for name in {t.turn_class for t in played.turns}}
    for name, turns in {**groups, "later": played.later()}.items():
        ttft_s = [turn.ttft_s for turn in turns]
        tpot_s = [turn.tpot_s for turn in turns if turn.tpot_s is not None]
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            values[f"{name}.ttft_{label}_s"] = percentile(ttft_s, share)
            values[f"{name}.tpot_{label}_s"] = percentile(tpot_s, share) if tpot_s else None
    return {name: value for name, value in values.items() if value is not None}


def _default(bench: Bench, best: Option, question: Question) -> Option:
    setting = Setting.default(best.setting.hardware, best.setting.routing)
    tried = bench.tried(setting, best.sessions_per_replica, question.draws)
    return option(bench.demand, tried, question.sessions)


def _routings(bench: Bench, best: Option, question: Question) -> list[Option]:
    if best.replicas == 1:
        return []
    found = []
    for routing in ROUTINGS:
        bench.progress(f"routing {routing}")
        setting = replace(best.setting, routing=routing)
        tried = bench.tried(setting, best.sessions_per_replica, min(3, question.draws))
        found.append(option(bench.demand, tried, question.sessions))
    return found


def _curve(bench: Bench, shown: Option) -> list[CurvePoint]:
    setting, fit = shown.setting, max(1.0, shown.sessions_that_fit)
    points = []
    numbers = {max(1, round(share * min(fit, 256))) for share in CURVE}
    for users in sorted(numbers | {shown.sessions_per_replica}):
        bench.progress(f"curve: {users} sessions a replica")
        tried = bench.tried(setting, users, CURVE_DRAWS)
        found = figures(tried.played)
        points.append(CurvePoint(users, found.get("later.ttft_p99_s"), tried.p_meets))
    return points


def binding(target: Target, chosen: Option) -> str | None:
    """The class whose share of good turns is lowest, with its limits in words."""
    if not chosen.good_shares:
        return None
    name = min(chosen.good_shares, key=lambda n: chosen.good_shares[n])
    share = chosen.good_shares[name]
    return f"{name} ({in_words(target.slos[name])}): {share:.1%} of its turns are good"
