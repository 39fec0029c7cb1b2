"""The answer first: what the numbers say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.distribution import Distribution
from analysis.factors import Crossed, at_level
from analysis.metrics import ALL, LATER, ClassFigures
from analysis.report import format as f
from analysis.results import ArmResults, Comparison, Results
from analysis.statistics import Effect

HEADLINES = ("ttft_p50", "itl_max_mean")
COLD_HEADLINES = ("ttft_mean",)
NAMES = {
    "enable_chunked_prefill": "chunked prefill",
    "enable_prefix_caching": "prefix caching",
}


def sentences(results: Results) -> list[str]:
    """A few sentences that answer what was asked of the run or the experiment."""
    if not results.has_data:
        return ["No turn was measured: there is nothing to say about latency."]
    if results.comparison is not None:
        return list(_comparison_lines(results.comparison))
    return [line for arm in results.arms for line in _arm_lines(arm)]


def _arm_lines(arm: ArmResults) -> Iterator[str]:
    parts = [_latency(row) for row in (arm.of_class("cold"), arm.later) if row is not None]
    everything = arm.of_class(ALL)
    if everything is not None and everything.error_rate:
        parts.append(
            f"{f.share(everything.error_rate)} of the turns failed "
            f"({f.counts(everything.errors_by_class)})"
        )
    if everything is not None and everything.slo_share_of_all is not None:
        parts.append(f"{f.share(everything.slo_share_of_all)} of the turns met the SLO")
    yield f"{arm.arm.name}: " + "; ".join(parts) + "."


def _latency(row: ClassFigures) -> str:
    name = "later turns" if row.turn_class == LATER else f"{row.turn_class} turns"
    return (
        f"{name} waited {_two(row.ttft_s)} for the first token, then saw gaps of {_two(row.itl_s)}"
    )


def _two(found: Distribution) -> str:
    if found.p50 is None:
        return "an unknown time"
    tail = f"P99 {f.seconds(found.p99)}" if found.p99 is not None else f.percentile(found, "p99")
    return f"{f.seconds(found.p50)} (P50; {tail})"


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.paired_turns == 0:
        yield (
            "The arms have no turn in common (same seed, session and turn index): their "
            "differences cannot be paired."
        )
        return
    if comparison.crossed is not None:
        yield from _factor_lines(comparison, comparison.crossed)
        return
    for name in dict.fromkeys(e.name for e in comparison.differences):
        mine = _headlines(comparison.differences, name)
        yield f"{comparison.base} → {name}: {_told(mine)}"


def _factor_lines(comparison: Comparison, crossed: Crossed) -> Iterator[str]:
    for factor, other in ((crossed.first, crossed.second), (crossed.second, crossed.first)):
        for level in (other.high, other.low):
            mine = _headlines(comparison.factorial, at_level(factor, other, level))
            if mine:
                lead = f"{NAMES.get(factor.name, factor.name)} {factor.low} → {factor.high}"
                yield (
                    f"{lead[0].upper()}{lead[1:]} ({NAMES.get(other.name, other.name)} {level}): "
                    f"{_told(mine)}"
                )


def _told(effects: Sequence[Effect]) -> str:
    """Clear differences as `TTFT P50 9.71 s → 129 ms (−9.58 s, ...)`, the others named only."""
    clear = [f"{_name(e)} {_from_to(e)}" for e in effects if e.is_clear]
    unclear = [
        f"{_name(e)} (none larger than {amount(e, e.no_larger_than).lstrip('+')})"
        for e in effects
        if e.no_larger_than is not None
    ]
    unknown = [
        f"{_name(e)} {_from_to(e)} (no interval: {e.reason})" for e in effects if e.low is None
    ]
    parts = ["; ".join(clear)] if clear else []
    parts += [f"no clear difference in {', '.join(unclear)}"] if unclear else []
    parts += ["; ".join(unknown)] if unknown else []
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def _name(found: Effect) -> str:
    return found.statistic.label + (" of cold turns" if found.turns_of == "cold" else "")


def _from_to(found: Effect) -> str:
    share = found.statistic.unit == "share"
    before, after = (
        f.share(v) if share else f.seconds(v) for v in (found.base, found.base + found.value)
    )
    text = f"{before} → {after}"
    return (
        text
        if found.low is None
        else f"{text} ({amount(found, found.value)}; 95 %: {interval(found)})"
    )


def readable(name: str) -> str:
    """The name of a contrast in plain words: `chunked prefill, prefix caching off`."""
    for setting, words in NAMES.items():
        name = name.replace(setting, words)
    return name.replace(" with ", ", ")


def _headlines(effects: Sequence[Effect], name: str) -> list[Effect]:
    mine = {(e.turns_of, e.statistic.name): e for e in effects if e.name == name}
    wanted = [(LATER, s) for s in HEADLINES] + [("cold", s) for s in COLD_HEADLINES]
    return [mine[key] for key in wanted if key in mine]


def interval(found: Effect) -> str:
    """`−9.44 s to −6.80 s`; a dash without an interval."""
    if found.low is None or found.high is None:
        return f.NOTHING
    return f"{amount(found, found.low)} to {amount(found, found.high)}"


def amount(found: Effect, value: float) -> str:
    """A value in the statistic's unit, with its sign."""
    if found.statistic.unit == "share":
        sign = "+" if value > 0 else "−" if value < 0 else ""
        return f"{sign}{min(abs(value), 1.0) * 100:.1f} points"
    return f.signed_seconds(value)
