"""The report as one HTML file that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from analysis.finding import Finding
from analysis.measured import Measured
from analysis.report import answer, distributions, tables, timelines
from analysis.report.replicas import replicas_of
from analysis.report.starts import starts_of
from analysis.report.style import NARROW_IN, WIDE_IN, svg
from analysis.report.tables import TextTable
from analysis.results import Results

METHOD = (
    "TTFT is from the begin of sending to the first chunk with generated text. ITL is the gap "
    "between two such chunks; gaps that the client itself spoiled (two chunks in one read, a late "
    "event loop) are left out. Queue and prefill are the server's own times where it sends them.",
    "Percentiles are linear interpolations on pooled records of successful turns inside the "
    "measured window; they are never averaged over workers, stages or runs. A figure that was not "
    "measured is a dash.",
    "Cold turns are the first ones of a session; T2+ are all others. A pooled P99 over both would "
    "be decided by the few cold ones.",
)


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure, drawn for a laptop and for a phone, as data URLs."""

    wide: str
    narrow: str
    alt: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)
    more: list[TextTable] = field(default_factory=list)  # folded away


@dataclass(frozen=True, slots=True)
class Verdict:
    level: str
    text: str
    lines: Sequence[str]


def render(results: Results, findings: Sequence[Finding] | None) -> str:
    """The whole page. Every text from files is escaped by the template."""
    environment = Environment(
        loader=PackageLoader("analysis.report", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("template.html.j2").render(
        title=title(results),
        facts=facts(results),
        verdict=verdict(results),
        answer=answer.sentences(results),
        findings=None if findings is None else grouped(findings),
        sections=[s for s in _sections(results) if s.pictures or any(t.rows for t in s.tables)],
        method=METHOD,
    )


def title(results: Results) -> str:
    names = [arm.arm.name for arm in results.arms]
    scenario = results.runs[0].run.manifest.scenario.get("name") or "run"
    what = f"arm {names[0]}" if len(names) == 1 else f"{len(names)} arms compared"
    return f"agentload: {scenario}, {what}"


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The same finding of several arms together, in order of first mention."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    return list(by_name.values())


def facts(results: Results) -> list[str]:
    """What was run on what, and every factor that scales the numbers."""
    manifests = [run.run.manifest for run in results.runs]
    first = manifests[0]
    names = sorted({str(m.scenario.get("name")) for m in manifests})
    seeds = sorted({m.seed for m in manifests})
    lines = [
        f"Scenario {', '.join(names)}, seed {', '.join(seeds)}; {len(manifests)} "
        f"run{'s' if len(manifests) > 1 else ''}: {', '.join(m.run_id for m in manifests)}.",
        f"Target {first.target.get('base_url') or 'not known'}, model "
        f"{first.target.get('model') or 'not known'}, server version "
        f"{first.target.get('server_version') or 'not known'}.",
        "Measured: "
        + ", ".join(f"{r.window.seconds:.0f} s of {r.arm}{_cut(r)}" for r in results.runs)
        + ".",
    ]
    scales = {m.context_scale for m in manifests} - {None, 1.0}
    for scale in sorted(s for s in scales if s is not None):
        lines.append(f"Contexts are scaled by {scale:g}: sizes in tokens are not the workload's.")
    speeds = {m.sim_speed for m in manifests} - {None}
    for speed in sorted(s for s in speeds if s is not None):
        lines.append(
            f"The server is the simulator at {speed:g} × real time: its times are shown as "
            f"measured; the hardware it models takes {speed:g} times as long."
        )
    return lines


def _cut(run: Measured) -> str:
    cut = int((~run.turns["measured"]).sum())
    return f" ({cut} turns of warm-up and drain left out)" if cut else ""


def verdict(results: Results) -> Verdict:
    """The worst of all runs' verdicts; it stands above everything else."""
    order = ("invalid", "unknown", "suspect", "valid")
    texts = {
        "valid": "It kept up with the load; the numbers below are the server's.",
        "suspect": "Some numbers may be the load generator's own; see why.",
        "invalid": "The numbers below must not be used.",
        "unknown": "It left no verdict on a run, as it did not end properly.",
    }
    levels = [run.run.manifest.verdict or "unknown" for run in results.runs]
    worst = min(levels, key=order.index)
    lines = []
    for run in results.runs:
        reasons = [*run.run.manifest.verdict_reasons, *run.notes]
        if reasons:
            lines.append(f"{run.run.manifest.run_id}: {'; '.join(reasons)}.")
    return Verdict(worst, texts[worst], lines)


def _sections(results: Results) -> Iterator[Section]:
    comparison = results.comparison
    yield Section("The figures", tables=[tables.arms(results), *starts_of(results)])
    if comparison is not None:
        yield Section(
            "Differences between the arms",
            "On the turns that all arms have, so that a slow arm is not flattered by the few turns "
            "it got to.",
            pictures=_picture(
                lambda w: distributions.differences(comparison, w),
                "Ratio of each arm to the base arm with 95 % intervals",
                "Later turns of each arm relative to the base arm. Left of the line is less.",
            ),
            tables=[tables.factorial(comparison), tables.differences(comparison)],
            more=[
                tables.factorial(comparison, whole=True),
                tables.differences(comparison, whole=True),
            ],
        )
    yield Section(
        "Time to the first token",
        pictures=[
            *_picture(
                lambda w: distributions.ttft(results, w),
                "Cumulative distribution of TTFT for each arm, cold and later turns",
                "Share of turns that had their first token within a time (logarithmic).",
            ),
            *_over_time(results),
        ],
    )
    yield Section(
        "Where the time to the first token goes",
        pictures=[
            *_picture(
                lambda w: distributions.waterfall(results, w),
                "Stacked mean parts of TTFT for each arm",
                "Mean parts of TTFT: they add up. Scales differ between cold and later turns.",
            ),
            *_picture(
                lambda w: distributions.cache(results, w),
                "Front end's share of TTFT against hit ratio; cache kept against idle time",
                "Left: as more of the prompt is cached, tokenization and the rest of the front end "
                "are what remains. Right: how much of what a session left behind was still there.",
            ),
        ],
        tables=[tables.waterfalls(results), tables.cache(results)],
    )
    yield Section(
        "Between the tokens",
        pictures=[
            *_picture(
                lambda w: distributions.itl_tail(results, w),
                "Share of gaps longer than a time, both axes logarithmic",
                "Every gap between token chunks: how large a share was longer than a time.",
            ),
            *_lanes(results),
        ],
        tables=[tables.stalls(results)],
    )
    yield Section(
        "The server meanwhile",
        tables=[
            tables.server_state(results),
            *replicas_of(results),
            *tables.gpus(results),
        ],
    )
    yield Section("More figures", tables=[tables.more_of_arms(results), tables.errors(results)])
    yield Section("Sessions", tables=[tables.sessions(arm) for arm in results.arms])
    yield Section("Server settings as found", tables=[tables.settings(results)])


def _picture(draw: Callable[[float], Figure | None], alt: str, caption: str) -> list[Picture]:
    drawn = [draw(width) for width in (WIDE_IN, NARROW_IN)]
    urls = [_data_url(figure) for figure in drawn if figure is not None]
    return [Picture(urls[0], urls[1], alt, caption)] if len(urls) == 2 else []


def _data_url(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure).encode()).decode()


def _over_time(results: Results) -> Iterator[Picture]:
    limits = timelines.ttft_limits(results)
    if limits is None:
        return
    for arm in results.arms:
        draw = partial(timelines.ttft_over_time, arm.arm.runs[0], arm.arm.name, limits)
        yield from _picture(
            draw,
            f"TTFT, queue and KV cache use over time, {arm.arm.name}",
            f"{arm.arm.name}: TTFT of each turn over the time it was sent, above what the server "
            "was busy with." + (" First run of the arm." if len(arm.arm.runs) > 1 else ""),
        )


def _lanes(results: Results) -> list[Picture]:
    run = timelines.most_stalled(results)
    if run is None:
        return []
    return _picture(
        partial(timelines.lanes, run),
        "Swim lanes of turns around the longest stalls",
        f"{run.arm}: the stretch with the most stalled time, one lane for each turn "
        "(session and turn number).",
    )


def as_markdown(results: Results, findings: Sequence[Finding] | None) -> str:
    """The short form for a pull request: verdict, answer, findings, the tables of arms."""
    judged = verdict(results)
    lines = [f"**Load generator: {judged.level}.** {judged.text}", ""]
    lines += [f"- {_md(line)}" for line in judged.lines]
    lines += ["", "### The answer", "", *(f"- {_md(s)}" for s in answer.sentences(results)), ""]
    if findings:
        lines += ["### Findings", ""]
        lines += [
            f"- **{_md(x.title)}** {_md(x.evidence)} *Next:* {_md(x.advice)} "
            f"*Expected:* {_md(x.effect)}"
            for x in findings
        ]
        lines.append("")
    lines += _md_table(tables.arms(results))
    lines += [line for table in starts_of(results) for line in _md_table(table)]
    if results.comparison is not None:
        lines += _md_table(tables.differences(results.comparison))
    lines += [*(_md(line) + "  " for line in facts(results)), ""]
    return "\n".join(lines)


def _md_table(table: TextTable) -> list[str]:
    ruler = ["---" if i < table.text_columns else "---:" for i in range(len(table.headings))]
    rows: list[Sequence[Any]] = [table.headings, ruler, *table.rows]
    return [
        *("| " + " | ".join(_md(str(c)) for c in row) + " |" for row in rows),
        "",
        table.note,
        "",
    ]


def _md(text: str) -> str:
    """Text from files as Markdown shows it literally."""
    for char, safe in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("`", "\\`")):
        text = text.replace(char, safe)
    return " ".join(text.split())
