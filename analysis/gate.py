"""Rules of a CI gate, judged with the interval of the difference."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.metrics import LATER
from analysis.results import GROUPS
from analysis.statistics import STATISTICS, Effect, Paired, Statistic, contrast

Verdict = Literal["pass", "fail", "undecided"]

_RULE = re.compile(
    r"\s*(?:(?P<turns>cold|later)\.)?(?P<name>[a-z0-9_]+)\s*(?P<op>[<>])\s*"
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|ms|s|points)?\s*",
    re.ASCII,  # digits of other scripts are no numbers here
)
_GROUP = {"cold": "cold", "later": LATER, None: LATER}
_SCALE = {"%": 0.01, "ms": 0.001, "s": 1.0, "points": 0.01, None: 1.0}
# None: a share is a number from 0 to 1, and a figure whose name ends in its unit needs no other.
_UNITS = {
    "s": ("%", "s", "ms"),
    "share": ("%", "points", None),
    "s per 1k tokens": ("%", "s", "ms", None),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """`ttft_p99 > +10%`: when this holds, the gate fails.

    With a sign the bound is on the change from A to B, relative with `%`; without a sign it is on
    B's own value.
    """

    text: str
    turns_of: str
    statistic: Statistic
    above: bool
    bound: float
    kind: Literal["relative", "difference", "value"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule's verdict: `undecided` when the bound lies inside the interval, or there is none."""

    rule: Rule
    verdict: Verdict
    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None


def parse_rule(text: str) -> Rule:
    """ValueError with what is allowed when the text is no rule."""
    names = {s.name: s for s in STATISTICS}
    found = _RULE.fullmatch(text)
    if found is None or found["name"] not in names:
        raise ValueError(
            f"{text!r} is no rule: [cold.|later.]FIGURE > or < [+|-]NUMBER[%|s|ms|points], such as "
            f"'ttft_p99 > +10%'; later is the default; figures are {', '.join(names)}"
        )
    rule = _rule(text, found, names[found["name"]])
    fault = _unit_fault(rule.statistic, found["unit"], rule.kind) or _bound_fault(rule)
    if fault is not None:
        raise ValueError(f"{text!r}: {fault}")
    return rule


def _rule(text: str, found: re.Match[str], statistic: Statistic) -> Rule:
    unit, signed = found["unit"], bool(found["sign"])
    kind: Literal["relative", "difference", "value"] = (
        "value" if not signed else "relative" if unit == "%" else "difference"
    )
    bound = float(found["number"]) * _SCALE[unit] * (-1 if found["sign"] == "-" else 1)
    group = _GROUP[found["turns"]]
    return Rule(" ".join(text.split()), group, statistic, found["op"] == ">", bound, kind)


def _unit_fault(statistic: Statistic, unit: str | None, kind: str) -> str | None:
    allowed = _UNITS[statistic.unit]
    if unit not in allowed:
        named = ", ".join(u or "no unit" for u in allowed)
        return f"{statistic.name} is measured in {statistic.unit}; allowed here are {named}"
    if unit == "%" and kind == "value":
        return "a bound in % needs a sign, as it is a change from A to B"
    return None


def _bound_fault(rule: Rule) -> str | None:
    """Why no run could ever break the rule: a gate that cannot fail hides a slip of the pen."""
    if not math.isfinite(rule.bound):
        return "the bound is too large a number"
    if rule.kind == "relative":
        return "nothing falls by 100 % or more" if rule.bound <= -1 else None
    if rule.statistic.unit == "share" and abs(rule.bound) > 1:
        return "a share is from 0 to 1, or 0 to 100 points"
    if rule.kind == "value" and rule.bound == 0 and not rule.above:
        return "nothing is below 0"
    if rule.kind == "value" and rule.statistic.unit == "share" and rule.bound == 1 and rule.above:
        return "no share is above 1"
    return None


def judge(rule: Rule, paired: Paired, a: str, b: str) -> Judged:
    """Fail only when the whole interval is beyond the bound, pass only when none of it is."""
    factors = {b: 1.0} if rule.kind == "value" else {b: 1.0, a: -1.0}
    base = b if rule.kind == "value" else a
    classes: Sequence[str] = GROUPS[rule.turns_of]
    effect = contrast(paired, rule.statistic, factors, b, base, classes, rule.turns_of)
    if effect is None:
        return Judged(rule, "undecided", None, None, None, f"no {rule.turns_of} turns with it")
    value, low, high = _on_scale(rule, effect)
    if value is None or low is None or high is None:
        reason = effect.reason or "the base is 0: there is no relative change"
        return Judged(rule, "undecided", value, None, None, reason)
    if not rule.above:
        broken, kept = high < rule.bound, low >= rule.bound
    else:
        broken, kept = low > rule.bound, high <= rule.bound
    return Judged(rule, "fail" if broken else "pass" if kept else "undecided", value, low, high)


def _on_scale(rule: Rule, effect: Effect) -> tuple[float | None, float | None, float | None]:
    if rule.kind != "relative":
        return effect.value, effect.low, effect.high
    if effect.ratio is None:
        return effect.relative, None, None
    return effect.relative, effect.ratio[0] - 1.0, effect.ratio[1] - 1.0
