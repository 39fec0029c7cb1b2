"""A plan as one HTML file that needs no network."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from agentload.capacity.plan.output import answer, cells, not_modelled, warnings
from agentload.capacity.plan.planning import Interval, Option, Plan
from agentload.capacity.plan.search import describe
from analysis.report.style import BLUE, GREEN, GREY, VERMILLION, drawing, seconds_axis, svg

WIDTH_IN = 9.2


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page; the first column is text."""

    name: str
    head: tuple[str, ...]
    rows: list[list[str]]


def render(plan: Plan) -> str:
    """The whole page; the template escapes every text."""
    environment = Environment(
        loader=PackageLoader("agentload.capacity.plan", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    sentences = list(answer(plan))
    commands = sentences[-2:] if plan.best else []
    return environment.get_template("plan.html.j2").render(
        title=f"agentload: plan for {plan.question.sessions:,} sessions of {plan.demand.name}",
        answer=sentences[: len(sentences) - len(commands)],
        commands=commands,
        warnings=warnings(plan),
        pictures=_pictures(plan),
        settings=_settings(plan),
        tables=[
            _table("Options", ("replicas", "cost/h"), _option_rows(plan)),
            _table(
                "Routing at as many sessions a replica",
                ("routing",),
                [[option.setting.routing, *_cells(option)] for option in plan.routings],
            ),
        ],
        not_modelled=not_modelled(plan),
        simulations=plan.simulations,
        draws=plan.question.draws,
    )


HEAD = ("sessions each", "P(meets)", "TTFT P50", "TTFT P99", "cold P50", "ITL P99", "hit ratio")


def _table(name: str, first: tuple[str, ...], rows: list[list[str]]) -> Table:
    return Table(name, (*first, *HEAD), rows)


def _option_rows(plan: Plan) -> list[list[str]]:
    return [
        [
            f"{option.replicas} x {option.setting.hardware.name}",
            "-" if option.cost_per_hour is None else f"{option.cost_per_hour:,.2f}",
            *_cells(option),
        ]
        for option in plan.options
    ]


def _cells(option: Option) -> list[str]:
    return [f"{option.sessions_per_replica}", *cells(option, interval=True)]


def _settings(plan: Plan) -> list[str]:
    """What the options of each kind of replica run with."""
    return list(dict.fromkeys(describe(option.setting) for option in plan.options))


def _pictures(plan: Plan) -> list[tuple[str, str]]:
    """(data URL, caption) of each figure that has something to show."""
    figures = []
    points = [(p.sessions_per_replica, p.ttft_p99_s) for p in plan.curve if p.ttft_p99_s]
    if len(points) > 1:
        caption = (
            "P99 TTFT of all turns but cold ones against sessions on one replica: median and middle"
            " 90 % of the draws. Behind the dashed line the contexts do not fit in the KV cache."
        )
        figures.append((_data_url(_curve(plan, [(n, i) for n, i in points if i])), caption))
    if len(plan.options) > 1:
        caption = "What each option costs and how likely it meets the limits; the line joins those"
        figures.append((_data_url(_pareto(plan)), f"{caption} that no other beats in both."))
    return figures


def _curve(plan: Plan, points: list[tuple[int, Interval]]) -> Figure:
    users = [number for number, _ in points]
    with drawing(WIDTH_IN, 3.4) as figure:
        axes = figure.add_subplot()
        axes.fill_between(
            users, [i.low for _, i in points], [i.high for _, i in points], color=BLUE, alpha=0.18
        )
        axes.plot(users, [i.median for _, i in points], color=BLUE, marker="o", label="P99 TTFT")
        axes.set_yscale("log")
        shown = plan.best or plan.options[0]
        axes.axvline(
            shown.sessions_that_fit, color=VERMILLION, linestyle="--", label="sessions that fit"
        )
        if plan.best:
            axes.axvline(
                plan.best.sessions_per_replica, color=GREEN, linestyle="-.", label="planned"
            )
        limit = next((s.ttft_s for n, s in plan.target.slos.items() if n == "tool" and s), None)
        if limit:
            axes.axhline(limit, color=GREY, linestyle=":", label="limit of tool turns")
        seconds_axis(axes.yaxis)
        axes.set_xlabel(f"sessions on one {shown.setting.hardware.name}")
        axes.set_ylabel("P99 TTFT, T2+")
        axes.legend(loc="upper left")
    return figure


def _pareto(plan: Plan) -> Figure:
    priced = plan.options[0].cost_per_hour is not None
    with drawing(WIDTH_IN, 3.0) as figure:
        axes = figure.add_subplot()
        front = plan.front
        axes.step(
            [o.rank for o in front], [o.p_meets for o in front], where="post", color=GREY, zorder=1
        )
        for option in plan.options:
            sure = option.p_meets >= plan.question.wanted
            axes.scatter(
                option.rank, option.p_meets, color=GREEN if sure else VERMILLION,
                marker="o" if sure else "x", zorder=2,
            )  # fmt: skip
            axes.annotate(
                f"{option.replicas} x {option.setting.hardware.name}",
                (option.rank, option.p_meets), xytext=(5, -11), textcoords="offset points",
                fontsize=8,
            )  # fmt: skip
        axes.axhline(plan.question.wanted, color=GREY, linestyle=":")
        axes.set_xlabel("cost per hour" if priced else "GPUs")
        axes.set_ylabel("P(meets)")
        axes.set_ylim(-0.05, 1.08)
    return figure


def _data_url(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure).encode()).decode()
