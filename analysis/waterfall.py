"""Where the time to the first token goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.distribution import mean_of, ratio, ratio_of_sums
from analysis.server import Scrape

PARTS = ("send_s", "frontend_s", "server_queue_s", "server_prefill_s")
CLOCK_NOISE_S = 0.002  # a residual down to -2 ms is what two clocks' stamps may disagree by

HIT_RATIO_EDGES = (0.0, 0.5, 0.9, 0.95, 0.98, 0.99, 1.0)
IDLE_EDGES_S = (0.0, 1.0, 10.0, 60.0, 300.0, 3600.0, float("inf"))
MIN_PREFILL_TOKENS = 2048  # below, a prefill's time is mostly that of the step it shares


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Mean parts of TTFT; they add up to `ttft_s`.

    `send_s` is connecting and writing the request, `frontend_s` HTTP parsing, tokenization,
    delivery and the client's read, then the server's queue and prefill. `source` is `per turn`, or
    `window means` where the server gave no times per request: then the populations of client and
    server may differ. `negative` counts turns whose rest is below what clocks can explain.
    """

    label: str
    turns: int
    source: str
    ttft_s: float
    send_s: float
    frontend_s: float
    queue_s: float
    prefill_s: float
    negative: int = 0

    @property
    def parts(self) -> tuple[float, float, float, float]:
        return (self.send_s, self.frontend_s, self.queue_s, self.prefill_s)


@dataclass(frozen=True, slots=True)
class HitRatioBin:
    """Turns whose cached share of the prompt lies in (low, high]."""

    low: float
    high: float
    turns: int
    ttft_s: float
    frontend_share: float | None


@dataclass(frozen=True, slots=True)
class IdleBin:
    """Turns that came this long after the end of their session's turn before.

    `kept` is the share of what the cache could have kept, `lost_prefill_s` what computing the rest
    again took, at the run's own seconds per token.
    """

    low_s: float
    high_s: float
    turns: int
    kept: float
    lost_tokens: float
    lost_prefill_s: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """Least squares: `intercept` seconds + `slope_s_per_token` x tokens."""

    intercept_s: float
    slope_s_per_token: float
    n: int


def waterfalls(good: pd.DataFrame, label: str) -> list[Waterfall]:
    """Means over all turns, over the middle fifth by TTFT, and over the slowest tenth.

    `good` are counted turns; those without one of the times are left out.
    """
    known = good[good[[*PARTS, "ttft_s"]].notna().all(axis=1).to_numpy()]
    if known.empty:
        return []
    found = [_mean(known, label)]
    if len(known) >= 10:
        low, high, tail = known["ttft_s"].quantile([0.4, 0.6, 0.9])
        ttft = known["ttft_s"].to_numpy()
        found.append(_mean(known[(ttft >= low) & (ttft <= high)], f"{label}, typical"))
        found.append(_mean(known[ttft >= tail], f"{label}, slowest 10 %"))
    return found


def _mean(turns: pd.DataFrame, label: str) -> Waterfall:
    send, frontend, queue, prefill = (float(turns[part].mean()) for part in PARTS)
    negative = int((turns["frontend_s"] < -CLOCK_NOISE_S).sum())
    ttft = float(turns["ttft_s"].mean())
    return Waterfall(label, len(turns), "per turn", ttft, send, frontend, queue, prefill, negative)


def window_waterfall(good: pd.DataFrame, scrape: Scrape, label: str) -> Waterfall | None:
    """The same split from `_sum / _count` of the server's histograms; None when one is missing."""
    queue, prefill = scrape.histogram("queue_time"), scrape.histogram("prefill_time")
    ttft, send = mean_of(good["ttft_s"].to_numpy()), mean_of(good["send_s"].to_numpy())
    if queue is None or prefill is None or ttft is None:
        return None
    if queue.mean_s is None or prefill.mean_s is None:
        return None
    rest = ttft - (send or 0.0) - queue.mean_s - prefill.mean_s
    return Waterfall(
        label, len(good), "window means", ttft, send or 0.0, rest, queue.mean_s, prefill.mean_s
    )


def server_frontend_s(scrape: Scrape) -> float | None:
    """Mean time from arrival in the API server to the queue: its parsing and tokenization.

    The server's TTFT starts at arrival, so TTFT - queue - prefill is what its front end took.
    """
    means = [scrape.histogram(m) for m in ("ttft", "queue_time", "prefill_time")]
    found = [None if h is None else h.mean_s for h in means]
    if found[0] is None or found[1] is None or found[2] is None:
        return None
    return found[0] - found[1] - found[2]


def by_hit_ratio(good: pd.DataFrame) -> list[HitRatioBin]:
    """The front end's share of TTFT against the cached share of the prompt."""
    ratios = (good["cached_tokens"] / good["prompt_tokens"]).to_numpy()
    return [
        HitRatioBin(
            low,
            high,
            len(part),
            float(part["ttft_s"].mean()),
            ratio_of_sums(part, "frontend_s", "ttft_s"),
        )
        for low, high, part in _binned(good, ratios, HIT_RATIO_EDGES)
    ]


def by_idle_time(good: pd.DataFrame) -> list[IdleBin]:
    """Survival of the prefix cache against the idle time before a turn."""
    eligible = good[(good["eligible_tokens"].notna() & good["cached_tokens"].notna()).to_numpy()]
    cost = prefill_s_per_token(good)
    found = []
    for low, high, part in _binned(eligible, eligible["idle_s"].to_numpy(), IDLE_EDGES_S):
        kept = ratio(float(part["cached_tokens"].sum()), float(part["eligible_tokens"].sum()))
        lost = (part["eligible_tokens"] - part["cached_tokens"]).clip(lower=0.0).sum()
        seconds = None if cost is None else float(lost) * cost
        if kept is not None:
            found.append(IdleBin(low, high, len(part), min(kept, 1.0), float(lost), seconds))
    return found


def prefill_s_per_token(good: pd.DataFrame) -> float | None:
    """Seconds of prefill per uncached token, over turns that computed enough of them."""
    big = good[(good["uncached_tokens"] >= MIN_PREFILL_TOKENS).to_numpy()]
    return ratio_of_sums(big, "server_prefill_s", "uncached_tokens")


def frontend_line(good: pd.DataFrame) -> Line | None:
    """Front-end time over prompt tokens; None with fewer than 20 turns or one prompt length."""
    known = good[(good["frontend_s"].notna() & good["prompt_tokens"].notna()).to_numpy()]
    tokens = known["prompt_tokens"].to_numpy()
    if len(known) < 20 or np.ptp(tokens) < 1:
        return None
    slope, intercept = np.polyfit(tokens, known["frontend_s"].to_numpy(), 1)
    return Line(float(intercept), float(slope), len(known))


def _binned(
    turns: pd.DataFrame, values: np.ndarray, edges: Sequence[float]
) -> list[tuple[float, float, pd.DataFrame]]:
    """Rows by bin (low, high], the first one with its low edge; empty bins are left out."""
    place = np.searchsorted(edges, values, side="left") - 1
    place[values == edges[0]] = 0
    place[np.isnan(values)] = -1
    bins = [(edges[i], edges[i + 1], turns[place == i]) for i in range(len(edges) - 1)]
    return [b for b in bins if len(b[2])]
