"""Figures over the time of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.gpu import gpu, memory_share, utilisation
from analysis.interference import SIZE_EDGES, prefill_intervals
from analysis.measured import Measured
from analysis.report import style
from analysis.results import Results

MAX_DOTS = 1500
MAX_LANES = 14


def ttft_limits(results: Results) -> tuple[float, float] | None:
    """Smallest and largest TTFT of all arms, so that their figures share one scale."""
    found = [r.turns.loc[r.turns["counted"].to_numpy(), "ttft_s"] for r in results.runs]
    values = np.concatenate([f.to_numpy() for f in found])
    values = values[values > 0]
    return (float(values.min()) / 1.3, float(values.max()) * 1.3) if len(values) else None


def ttft_over_time(
    run: Measured, name: str, limits: tuple[float, float], width: float
) -> Figure | None:
    """TTFT of each turn over its start; below, requests waiting and running, and KV cache use.

    Where a DCGM exporter was scraped, the use of the GPUs is below that.
    """
    good = run.turns[run.turns["counted"].to_numpy()]
    if good.empty:
        return None
    wide = width > 6
    has_gpu = gpu(run.scrape) is not None
    with style.drawing(width, (4.3 if wide else 4.6) + 1.1 * has_gpu) as figure:
        ratios = [3, 2, 1.6] if has_gpu else [3, 2]
        axes = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
        top, bottom = axes[:2]
        _dots(top, good)
        top.set_yscale("log")
        top.set_ylim(*limits)
        style.seconds_axis(top.yaxis)
        top.set_ylabel("TTFT")
        top.set_title(style.clean(name))
        _state(bottom, run)
        if has_gpu:
            _gpu(axes[2], run)
        axes[-1].set_xlabel("seconds since the run's start")
        axes[-1].set_xlim(run.window.from_s, run.window.to_s)
        told = [axis.get_legend_handles_labels() for axis in axes]
        handles, labels = ([x for one in told for x in one[i]] for i in (0, 1))
        figure.legend(handles, labels, loc="outside lower left", ncols=5 if wide else 2)
    return figure


def _dots(axis: Axes, good: pd.DataFrame) -> None:
    groups = {"cold turn": good["turn_class"] == "cold", "later turn": good["turn_class"] != "cold"}
    for i, (label, mask) in enumerate(reversed(groups.items())):
        mine = good[mask.to_numpy()]
        step = max(1, len(mine) // MAX_DOTS)
        shown = mine.sort_values("ttft_s").iloc[::step] if step > 1 else mine
        axis.plot(
            shown["call_start_s"].to_numpy(),
            shown["ttft_s"].to_numpy(),
            linestyle="none",
            marker=style.MARKERS[i],
            markersize=3.5 if i == 0 else 5,
            alpha=0.75,
            color=(style.BLUE, style.VERMILLION)[i],
            label=label if step == 1 else f"{label} (1 in {step})",
        )


def _state(axis: Axes, run: Measured) -> None:
    waiting, running = run.scrape.total("waiting"), run.scrape.total("running")
    usage = run.scrape.spread("kv_usage")
    if waiting is None and running is None and usage is None:
        axis.text(0.5, 0.5, "no /metrics of the server", transform=axis.transAxes, ha="center")
        return
    if running is not None:
        axis.step(*running, where="post", color=style.GREY, linewidth=1.2, label="running")
    if waiting is not None:
        axis.fill_between(
            *waiting, step="post", color=style.ORANGE, alpha=0.55, linewidth=0, label="waiting"
        )
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axis.set_ylabel("requests")
    if usage is not None:
        right = axis.twinx()
        right.plot(usage[0], usage[2], color=style.GREEN, linewidth=1.4, linestyle="--")
        axis.plot([], [], color=style.GREEN, linestyle="--", label="KV cache use (right)")
        right.set_ylim(0, 1.05)
        right.grid(visible=False)
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.spines["right"].set_visible(True)


def _gpu(axis: Axes, run: Measured) -> None:
    busy, memory = utilisation(run.scrape), memory_share(run.scrape)
    if busy is not None:
        axis.plot(*busy, color=style.PURPLE, linewidth=1.2, label="GPU busy")
    if memory is not None:
        axis.plot(*memory, color=style.SKY, linewidth=1.4, linestyle="-.", label="GPU memory used")
    axis.set_ylim(0, 1.05)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel("GPU")


def most_stalled(results: Results) -> Measured | None:
    """The run with the most stalled time; None when no gap stalled."""
    runs = [run for run in results.runs if len(run.gaps.stalls.length_s)]
    return max(runs, key=lambda r: float(r.gaps.stalls.length_s.sum()), default=None)


def lanes(run: Measured, width: float) -> Figure:
    """The stretch of a run with the most stalled time, a lane for each turn in it."""
    from_s, to_s = _busiest(run)
    turns = run.turns.assign(position=np.arange(len(run.turns)))
    inside = turns[((turns["end_s"] > from_s) & (turns["send_start_s"] < to_s)).to_numpy()]
    stalled = set(run.gaps.stalls.turn.astype(int).tolist())
    inside = inside.assign(calm=~inside["position"].isin(stalled))
    inside = inside.sort_values(["calm", "uncached_tokens"], ascending=[True, False])
    chosen = inside.head(MAX_LANES).sort_values("call_start_s", ascending=False)
    with style.drawing(width, 0.24 * len(chosen) + 1.5) as figure:
        axis = figure.subplots()
        for y, lane in enumerate(chosen.itertuples()):
            _lane(axis, y, lane, run)
        names = zip(chosen["session_id"], chosen["turn_index"], strict=True)
        axis.set_yticks(range(len(chosen)), [f"{str(s)[-14:]} #{i:.0f}" for s, i in names])
        axis.set_xlim(from_s, to_s)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("seconds since the run's start")
        for colour, label in _LANE_PARTS:
            axis.barh(0, 0, color=colour, label=label)
        style.legend_below(figure, axis, 4 if width > 6 else 2)
    return figure


_LANE_PARTS = (
    (style.GREY, "waiting for the server"),
    (style.BLUE, "prefill"),
    (style.SKY, "streaming"),
    (style.VERMILLION, "stalled gap"),
)


def _lane(axis: Axes, y: int, turn: object, run: Measured) -> None:
    start, first, end, position = (
        getattr(turn, name) for name in ("send_start_s", "first_chunk_s", "end_s", "position")
    )
    prefill = getattr(turn, "server_prefill_s", float("nan"))
    begin = start if np.isnan(prefill) else first - prefill
    axis.barh(y, begin - start, left=start, color=style.GREY, height=0.35)
    axis.barh(y, first - begin, left=begin, color=style.BLUE, height=0.7)
    axis.barh(y, end - first, left=first, color=style.SKY, height=0.35)
    stalls = run.gaps.stalls
    mine = stalls.turn == position
    axis.barh(
        np.full(int(mine.sum()), y),
        stalls.length_s[mine],
        left=stalls.start_s[mine],
        color=style.VERMILLION,
        height=0.7,
    )


def _busiest(run: Measured) -> tuple[float, float]:
    """A stretch around the most stalled seconds, long enough to show the prefills beside them."""
    stalls = run.gaps.stalls
    span = float(np.clip(4 * np.median(stalls.length_s), 1.0, 60.0))
    starts = np.unique(np.floor(stalls.start_s / span)) * span
    place = np.searchsorted(starts, stalls.start_s, side="right") - 1
    best = float(starts[int(np.argmax(np.bincount(place, stalls.length_s)))])
    big = prefill_intervals(run.turns)
    big = big[((big["uncached_tokens"] >= SIZE_EDGES[1]) & (big["end_s"] > best)).to_numpy()]
    near = big[(big["start_s"] < best + span).to_numpy()]
    begin = min(best, float(near["start_s"].min())) if len(near) else best
    return max(begin, best - span) - 0.05 * span, best + 1.2 * span
