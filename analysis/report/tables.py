"""The tables of the report, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.metrics import ALL, LATER
from analysis.report import format as f
from analysis.report.answer import amount, interval, readable
from analysis.report.table import HEADINGS, cells
from analysis.results import ArmResults, Comparison, Results
from analysis.statistics import Effect
from analysis.waterfall import Waterfall

MAX_TURN_NUMBERS = 25


@dataclass(frozen=True, slots=True)
class TextTable:
    """`rows` are text; the first `text_columns` columns are names, the others figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    text_columns: int = 1


def arms(results: Results) -> TextTable:
    """One row for each arm and class: the table that the terminal shows too."""
    rows = []
    for arm in results.arms:
        shown = [row for row in arm.classes if row.turn_class != ALL]
        for i, row in enumerate(shown):
            rows.append([arm.arm.name if i == 0 else "", *cells(row)])
    note = (
        f"{f.FEW_NOTE}; with fewer still, the largest value is shown. Jitter is the median over "
        "turns of a turn's P99 − P50 of its gaps. Latencies are of successful turns."
    )
    return TextTable(("arm", *HEADINGS), rows, note=note, text_columns=2)


def more_of_arms(results: Results) -> TextTable:
    """What the first table has no room for."""
    headings = (
        "arm", "turns of class", "E2E P50", "TPOT mean", "ITL mean", "ITL per token P50", "ITL max",
        "stalls", "stalled s per 1,000 tokens", "eligible hit", "within SLO", "goodput /s",
        "output tokens/s", "implausible", "aborted",
    )  # fmt: skip
    rows = []
    for arm in results.arms:
        for i, row in enumerate(arm.classes):
            rows.append(
                [
                    arm.arm.name if i == 0 else "",
                    row.turn_class,
                    f.seconds(row.e2e_s.p50),
                    f.seconds(row.tpot_s.mean),
                    f.seconds(row.itl_s.mean),
                    f.seconds(row.itl_per_token_s.p50),
                    f.seconds(row.itl_s.max),
                    f.number(row.stall_count),
                    f.number(row.stall_s_per_1k_tokens),
                    f.share(row.eligible_hit),
                    f.share(row.slo_share_of_all),
                    f.number(row.goodput_per_s),
                    f.number(row.output_tokens_per_s),
                    str(row.implausible),
                    str(row.aborted),
                ]
            )
    note = (
        "TPOT is one value per turn, (last − first chunk) / (output tokens − 1), averaged over "
        "turns; ITL pools all gaps, so long answers weigh more. Eligible hit: of the tokens that "
        "the session's turn before left behind, the share that was still cached."
    )
    return TextTable(headings, rows, note=note, text_columns=2)


def differences(comparison: Comparison, *, whole: bool = False) -> TextTable:
    """Every arm against the base on the turns that all arms have; `whole`: every statistic."""
    rows = _differences([e for e in comparison.differences if whole or _is_main(e)])
    note = (
        f"Base: {comparison.base}. Paired: the {comparison.paired_turns:,} turns (same seed, "
        f"session, turn index) that all arms have, from {comparison.paired_sessions} sessions. "
        "Intervals cover 95 %, from a bootstrap over sessions; they are not adjusted for the "
        "number of rows. A question mark: 0 is inside the interval, or there is none."
    )
    return TextTable(_EFFECT_HEADINGS, rows, note=note, text_columns=2)


def factorial(comparison: Comparison, *, whole: bool = False) -> TextTable:
    """Main effects, effects at each level of the other factor, and the interaction."""
    shown = _differences([e for e in comparison.factorial if whole or _is_main(e)])
    note = (
        "A main effect is the mean over both levels of the other factor. The interaction is how "
        "much one factor's effect changes when the other goes from low to high."
    )
    rows = [row[:-1] for row in shown]  # ratios are of two arms only
    return TextTable(_EFFECT_HEADINGS[:-1], rows, note=note, text_columns=2)


MAIN_STATISTICS = ("ttft_p50", "ttft_p99", "itl_max_mean", "jitter_mean", "slo_share")


def _is_main(e: Effect) -> bool:
    """Shown without unfolding: what has an interval, of the figures people ask about first."""
    cold = e.turns_of == "cold" and e.statistic.name == "ttft_mean"
    return e.reason is None and (
        cold or (e.turns_of == LATER and e.statistic.name in MAIN_STATISTICS)
    )


_EFFECT_HEADINGS = ("figure", "effect of", "base", "difference", "95 % interval", "ratio")


def _differences(effects: Sequence[Effect]) -> list[list[str]]:
    """Grouped by figure, so that one figure's effects stand below each other."""
    rows = []
    figures = list(dict.fromkeys((e.turns_of, e.statistic.label) for e in effects))
    for turns_of, label in figures:
        mine = [e for e in effects if (e.turns_of, e.statistic.label) == (turns_of, label)]
        for i, e in enumerate(mine):
            rows.append([f"{label}, {turns_of}" if i == 0 else "", *_difference(e)])
    return rows


def _difference(e: Effect) -> list[str]:
    return [
        readable(e.name),
        f.share(e.base) if e.statistic.unit == "share" else f.seconds(e.base),
        amount(e, e.value) + ("" if e.is_clear else " ?"),
        interval(e) if e.reason is None else e.reason.split(", ")[-1],
        f.NOTHING if e.ratio is None else _ratio(e.base, e.value, e.ratio),
    ]


def _ratio(base: float, value: float, bounds: tuple[float, float]) -> str:
    shown = (f"{x:.3g}" for x in ((base + value) / base, *bounds))
    return "×{} ({} to {})".format(*shown)


def waterfalls(results: Results) -> TextTable:
    """Mean parts of TTFT."""
    rows = [[arm.arm.name, *_fall(w)] for arm in results.arms for w in arm.waterfalls]
    headings = (
        "arm", "turns of", "turns", "TTFT", "connect, send", "front end", "queue", "prefill",
        "negative rests", "source",
    )  # fmt: skip
    note = (
        "The front end is the rest: HTTP, tokenization, network, delivery. It is not cut off at 0; "
        "negative rests beyond 2 ms mean that client and server counted different requests."
    )
    return TextTable(headings, rows, note=note, text_columns=2)


def _fall(w: Waterfall) -> list[str]:
    parts = [f.seconds(v) for v in (w.ttft_s, *w.parts)]
    return [w.label, str(w.turns), *parts, str(w.negative), w.source]


def stalls(results: Results) -> TextTable:
    """Stalled time, what explains it, and whether the server saw such gaps too."""
    headings = (
        "arm", "stalls", "stalled", "in others' prefills", "by chance", "chance, 97.5 %",
        "largest offenders", "gaps above", "client", "server",
    )  # fmt: skip
    rows = []
    for arm in results.arms:
        for found, check in zip(arm.interference, arm.stall_checks, strict=True):
            if found is None:
                continue
            worst = max(found.by_size, key=lambda s: s.explained_s)
            sizes = f"≥ {worst.low:,.0f} tokens" if worst.explained_s > 0 else f.NOTHING
            rows.append(
                [
                    arm.arm.name,
                    f"{found.stalls:,}",
                    f.seconds(found.stall_s),
                    f.share(found.explained_share),
                    f.share(found.chance_share),
                    f.share(found.chance_high_share),
                    sizes,
                    f.seconds(check.bound_s) if check else f.NOTHING,
                    f"{check.client_gaps:,}" if check else f.NOTHING,
                    f.number(check.server_gaps) if check else f.NOTHING,
                ]
            )
    note = (
        "A stall is a gap above max(5 × the turn's median gap, 0.25 s) unless the scenario says "
        "otherwise. Chance: the same stalls moved to random times of the run. The last columns "
        "count gaps above a bound of the server's own histogram on both sides."
    )
    return TextTable(headings, rows, note=note)


def sessions(arm: ArmResults) -> TextTable:
    """How many sessions got to each turn."""
    found = arm.sessions
    shown = found.by_turn[:MAX_TURN_NUMBERS]
    rows = [[str(t.turn_index), str(t.sessions), f.seconds(t.mean_ttft_s)] for t in shown]
    more = len(found.by_turn) - len(shown)
    note = (
        f"{found.sessions} sessions, {found.broken} ended in a failed turn, the deepest turn is "
        f"{found.deepest_turn}." + (f" {more} later turn numbers are left out." if more else "")
    )
    return TextTable(("turn", "sessions", "mean TTFT"), rows, title=arm.arm.name, note=note)


def server_state(results: Results) -> TextTable:
    """Queue, batch and cache of each arm's servers over the window."""
    headings = (
        "arm", "limit", "running mean / max", "waiting mean / max", "KV use mean / max",
        "preemptions per 100", "sessions that fit in KV", "restarts",
    )  # fmt: skip
    rows = []
    for arm in results.arms:
        for p in arm.pressure:
            rows.append(
                [
                    arm.arm.name,
                    p.limit or "not known",
                    f"{f.number(p.running_mean)} / {f.number(p.running_max)}",
                    f"{f.number(p.waiting_mean)} / {f.number(p.waiting_max)}",
                    f"{f.share(p.kv_usage_mean)} / {f.share(p.kv_usage_max)}",
                    f.number(p.preemptions_per_100),
                    f.number(p.sessions_that_fit),
                    str(p.restarts),
                ]
            )
    return TextTable(headings, rows, text_columns=2)


def gpus(results: Results) -> list[TextTable]:
    """Memory and use of each arm's GPUs over the window; empty when no exporter was scraped."""
    headings = (
        "arm",
        "GPUs",
        "memory used mean / max",
        "largest share",
        "busy mean / max",
        "least busy",
    )
    rows = [
        [
            arm.arm.name,
            str(g.gpus),
            f"{_gib(g.memory_used_mib_mean)} / {_gib(g.memory_used_mib_max)}",
            f.share(g.memory_share_max),
            f"{f.share(g.utilisation_mean)} / {f.share(g.utilisation_max)}",
            f.share(g.utilisation_least),
        ]
        for arm in results.arms
        for g in arm.gpu
        if g is not None
    ]
    note = (
        "vLLM takes its memory at the start, so memory used says little of the load; KV use does."
    )
    return [TextTable(headings, rows, note=note)] if rows else []


def _gib(mib: float | None) -> str:
    return f.NOTHING if mib is None else f"{mib / 1024:.1f} GiB"


def settings(results: Results) -> TextTable:
    """Server settings as found; those that differ between arms come first."""
    differing = results.comparison.differing if results.comparison else {}
    names = sorted({name for arm in results.arms for name in arm.arm.settings})
    names.sort(key=lambda n: n.replace("-", "_") not in differing)
    rows = [
        [
            name + (" (differs)" if name.replace("-", "_") in differing else ""),
            *(str(arm.arm.settings.get(name, f.NOTHING))[:80] for arm in results.arms),
        ]
        for name in names
    ]
    return TextTable(("setting", *(arm.arm.name for arm in results.arms)), rows)


def errors(results: Results) -> TextTable:
    """Failed turns by class of error."""
    rows = []
    for arm in results.arms:
        everything = arm.of_class(ALL)
        for name, count in (everything.errors_by_class if everything else {}).items():
            rows.append([arm.arm.name, name, str(count)])
    return TextTable(("arm", "error", "turns"), rows, text_columns=2)


def cache(results: Results) -> TextTable:
    """What the cache kept over idle times, and the prefill that its losses cost."""
    rows = [
        [
            arm.arm.name,
            f"{b.low_s:g} s to {b.high_s:g} s",
            str(b.turns),
            f.share(b.kept),
            f.number(b.lost_tokens),
            f.seconds(b.lost_prefill_s),
        ]
        for arm in results.arms
        for b in arm.by_idle_time
    ]
    headings = ("arm", "idle before the turn", "turns", "kept", "tokens lost", "prefill they cost")
    note = f"Of {LATER} turns that extend the turn before them in the same session."
    return TextTable(headings, rows, note=note, text_columns=2)
