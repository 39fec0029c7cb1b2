"""Figures of what was measured, without time: distributions, parts, differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from analysis.measured import CLASSES
from analysis.metrics import LATER, pooled_gaps
from analysis.report import style
from analysis.results import GROUPS, ArmResults, Comparison, Results
from analysis.statistics import Effect

MAX_POINTS = 400  # of a curve: more cannot be seen
SHOWN_EFFECTS = (
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "tpot_mean",
    "itl_p99_mean",
    "itl_max_mean",
    "jitter_mean",
)
PART_NAMES = ("connect and send", "front end, tokenization, network", "server queue", "prefill")
PART_COLOURS = (style.GREY, style.ORANGE, style.VERMILLION, style.BLUE)


def ttft(results: Results, width: float) -> Figure | None:
    """Share of turns that had their first token by a time; cold and later turns apart."""
    curves = {
        name: [(arm, _sorted_ttft(arm, classes)) for arm in results.arms]
        for name, classes in GROUPS.items()
    }
    shown = {n: c for n, c in curves.items() if any(len(values) for _, values in c)}
    if not shown:
        return None
    with style.drawing(width, 3.3 if width > 6 else 2.7 * len(shown) + 0.6) as figure:
        side_by_side = width > 6
        axes = figure.subplots(
            1 if side_by_side else len(shown), len(shown) if side_by_side else 1, squeeze=False
        ).ravel()
        for axis, (name, arms) in zip(axes, shown.items(), strict=True):
            _ecdf(axis, arms)
            what = "cold turns" if name == "cold" else f"later turns ({LATER})"
            axis.set_title(f"{what}, n = {_counts(arms)}")
        style.legend_below(figure, axes[0], 2 if side_by_side else 1)
    return figure


def _counts(arms: Sequence[tuple[ArmResults, np.ndarray]]) -> str:
    """`12` when all arms have as many turns, else `12 / 9`."""
    counts = [len(values) for _, values in arms]
    return f"{counts[0]:,}" if len(set(counts)) == 1 else " / ".join(f"{n:,}" for n in counts)


def _sorted_ttft(arm: ArmResults, classes: Sequence[str]) -> np.ndarray:
    parts = [
        run.turns.loc[
            run.turns["counted"].to_numpy() & run.turns["turn_class"].isin(classes).to_numpy(),
            "ttft_s",
        ].to_numpy()
        for run in arm.arm.runs
    ]
    values = np.concatenate(parts)
    known: np.ndarray = np.sort(values[~np.isnan(values)])
    return known


def _ecdf(axis: Axes, arms: Sequence[tuple[ArmResults, np.ndarray]]) -> None:
    for i, (arm, values) in enumerate(arms):
        if not len(values):
            continue
        at = np.unique(np.linspace(0, len(values) - 1, MAX_POINTS).astype(int))
        axis.step(
            np.concatenate([values[:1], values[at]]),
            np.concatenate([[0.0], (at + 1) / len(values)]),
            where="post",
            label=style.clean(arm.arm.name),
            linewidth=1.8,
            **style.look(i),
        )
    axis.set_xscale("log")
    axis.autoscale_view()
    style.seconds_axis(axis.xaxis)
    axis.set_xlabel("TTFT")
    axis.set_ylim(0, 1.02)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))


def itl_tail(results: Results, width: float) -> Figure | None:
    """Share of gaps that were longer than a time, both axes logarithmic: the tail is the point."""
    with style.drawing(width, 3.4) as figure:
        axis = figure.subplots()
        drawn = 0
        for i, arm in enumerate(results.arms):
            values, counts = pooled_gaps(arm.arm, CLASSES).points()
            if not len(values):
                continue
            drawn += 1
            total = counts.sum()
            beyond = (total - np.cumsum(counts)) / total
            at = _spread(values, beyond)
            label = f"{style.clean(arm.arm.name)} ({int(total):,} gaps)"
            axis.step(values[at], beyond[at], where="post", label=label, **style.look(i))
        if not drawn:
            return None
        floor = results.runs[0].stall_rule.floor_s
        axis.axvline(floor, color=style.BLACK, linewidth=0.8, linestyle=":")
        axis.text(floor, 1.0, " stalls start here", va="top", fontsize=8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        style.seconds_axis(axis.xaxis)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v * 100:g} %"))
        axis.set_xlabel("gap between two token chunks")
        axis.set_ylabel("share of gaps longer")
        style.legend_below(figure, axis, 2 if width > 6 else 1)
    return figure


def _spread(values: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Points evenly spread over the tail's orders of magnitude; the last has nothing beyond."""
    keep = np.flatnonzero((beyond > 0) & (values > 0))
    if len(keep) <= MAX_POINTS:
        return keep
    by_level = np.searchsorted(-beyond[keep], -np.geomspace(1, beyond[keep][-1], MAX_POINTS))
    return keep[np.unique(np.clip(by_level, 0, len(keep) - 1))]


def waterfall(results: Results, width: float) -> Figure | None:
    """Stacked mean parts of TTFT, one bar for each arm and group of turns."""
    falls = [(a.arm.name, w) for a in results.arms for w in a.waterfalls]
    if len(results.arms) > 2:
        falls = [(name, w) for name, w in falls if "," not in w.label]
    if not falls:
        return None
    groups = list(dict.fromkeys(w.label for _, w in falls))
    with style.drawing(width, 0.34 * len(falls) + 0.75 * len(groups) + 0.9) as figure:
        heights = [sum(w.label == g for _, w in falls) for g in groups]
        axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights).ravel()
        for axis, group in zip(axes, groups, strict=True):
            mine = [(name, w) for name, w in reversed(falls) if w.label == group]
            left = np.zeros(len(mine))
            names = [style.clean(name) for name, _ in mine]
            for part, (label, colour) in enumerate(zip(PART_NAMES, PART_COLOURS, strict=True)):
                lengths = np.array([w.parts[part] for _, w in mine])
                axis.barh(names, lengths, left=left, color=colour, label=label, height=0.7)
                left += lengths
            counts = " / ".join(dict.fromkeys(f"{w.turns:,}" for _, w in reversed(mine)))
            axis.set_title(f"{group}, n = {counts} ({mine[0][1].source})")
            axis.grid(axis="y", visible=False)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} s"))
        style.legend_below(figure, axes[0], 4 if width > 6 else 1)
    return figure


def differences(comparison: Comparison, width: float) -> Figure | None:
    """Each arm relative to the base on paired turns, with intervals; left of 1 is less."""
    shown = [
        e
        for e in comparison.differences
        if e.turns_of == LATER and e.statistic.name in SHOWN_EFFECTS and e.ratio is not None
    ]
    if not shown:
        return None
    names = list(dict.fromkeys(e.statistic.label for e in shown))
    arms = list(dict.fromkeys(e.name for e in shown))
    with style.drawing(width, 0.2 * len(names) * (len(arms) + 1) + 1.3) as figure:
        axis = figure.subplots()
        for i, arm in enumerate(arms):
            mine = [e for e in shown if e.name == arm]
            ys = [-names.index(e.statistic.label) + (0.5 - (i + 1) / (len(arms) + 1)) for e in mine]
            _ratios(axis, mine, ys, i, arm)
        axis.axvline(1.0, color=style.BLACK, linewidth=0.9)
        axis.set_yticks([-i for i in range(len(names))], names)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"×{v:g}"))
        axis.xaxis.set_minor_formatter(FuncFormatter(_minor_label) if _narrow(axis) else _EMPTY)
        axis.set_xlabel("relative to the base arm, 95 % interval")
        style.legend_below(figure, axis, 2 if width > 6 else 1)
    return figure


_EMPTY = FuncFormatter(lambda *_: "")


def _narrow(axis: Axes) -> bool:
    low, high = axis.get_xlim()
    return high / max(low, 1e-9) < 30


def _minor_label(value: float, _: int | None) -> str:
    lead = value / 10.0 ** np.floor(np.log10(value))
    return f"×{value:.2g}" if round(float(lead)) in (2, 5) else ""


def _ratios(axis: Axes, effects: Sequence[Effect], ys: Sequence[float], i: int, arm: str) -> None:
    centre = np.array([(e.base + e.value) / e.base for e in effects])
    bounds = np.array([e.ratio for e in effects], dtype=float)
    axis.errorbar(
        centre,
        ys,
        xerr=[centre - bounds[:, 0], bounds[:, 1] - centre],
        fmt=style.MARKERS[i % len(style.MARKERS)],
        color=style.COLOURS[(i + 1) % len(style.COLOURS)],
        label=style.clean(arm),
        capsize=2.5,
        markersize=5,
    )


def cache(results: Results, width: float) -> Figure | None:
    """The front end's share of TTFT by hit ratio, and what the cache kept by idle time.

    A half for which no arm has two points is left out.
    """
    has_ratio = any(len(a.by_hit_ratio) > 1 for a in results.arms)
    has_idle = any(len(a.by_idle_time) > 1 for a in results.arms)
    count = has_ratio + has_idle
    if not count:
        return None
    wide = width > 6
    with style.drawing(width, 3.2 if wide else 0.4 + 2.6 * count) as figure:
        shape = (1, count) if wide else (count, 1)
        axes = list(figure.subplots(*shape, squeeze=False).ravel())
        if has_ratio:
            _by_hit_ratio(axes[0], results)
        if has_idle:
            _by_idle_time(axes[-1], results)
        for axis in axes:
            axis.set_ylim(-0.03, 1.05)
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        style.legend_below(figure, axes[0], 2 if wide else 1)
    return figure


def _by_hit_ratio(axis: Axes, results: Results) -> None:
    for i, arm in enumerate(results.arms):
        bins = [b for b in arm.by_hit_ratio if b.frontend_share is not None]
        axis.plot(
            [f"≤ {b.high:g}" for b in bins],
            [b.frontend_share or 0.0 for b in bins],
            marker=style.MARKERS[i % len(style.MARKERS)],
            label=style.clean(arm.arm.name),
            **style.look(i),
        )
    axis.set_title("front end's share of TTFT")
    axis.set_xlabel("cached share of the prompt")


def _by_idle_time(axis: Axes, results: Results) -> None:
    for i, arm in enumerate(results.arms):
        axis.plot(
            [_idle_label(b.high_s) for b in arm.by_idle_time],
            [b.kept for b in arm.by_idle_time],
            marker=style.MARKERS[i % len(style.MARKERS)],
            label=style.clean(arm.arm.name),
            **style.look(i),
        )
    axis.set_title("share of the reusable tokens still cached")
    axis.set_xlabel("idle time before the turn")


def _idle_label(high_s: float) -> str:
    if np.isinf(high_s):
        return "> 1 h"
    return f"≤ {high_s:g} s" if high_s < 120 else f"≤ {high_s / 60:g} min"
