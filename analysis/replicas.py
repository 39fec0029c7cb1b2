"""What each of several replicas behind one address did, what changing between them cost."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.finding import rows_by
from analysis.measured import Measured
from analysis.server import Scrape
from analysis.waterfall import prefill_s_per_token


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica over the window; None where nobody tells.

    Turns, sessions and their prompt tokens need a gateway or server that names the replica in its
    answers; `asked_tokens` and `hit` are the replica's own counters, which also count what others
    sent it.
    """

    name: str
    turns: int | None
    sessions: int | None
    prompt_tokens: float | None
    asked_tokens: float | None
    hit: float | None

    @property
    def load_tokens(self) -> float | None:
        """Prompt tokens by the answers, else by its own counter."""
        return self.asked_tokens if self.prompt_tokens is None else self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Moves:
    """Turns that extend their session's turn before, and those of them on another replica.

    `lost_tokens`: what the moved ones computed again beyond what the others of the run had to;
    an upper bound where no turn stayed. `lost_share` is of all prompt tokens of the window.
    `file_rows` are lines of `turns.csv`: the moved turns that lost most.
    `ttft_s`: what a moved turn's share of it takes to prefill; None = no prefill times.
    """

    followed: int
    moved: int
    lost_tokens: float
    lost_share: float
    ttft_s: float | None
    file_rows: tuple[int, ...] = ()

    @property
    def moved_share(self) -> float:
        return self.moved / self.followed


@dataclass(frozen=True, slots=True)
class Replicas:
    """Two replicas or more. `imbalance` is the largest load over the mean one: 1 = even."""

    rows: tuple[Replica, ...]
    imbalance: float | None
    moves: Moves | None


def replicas(measured: Measured) -> Replicas | None:
    """What each replica did in the measured window; None where fewer than two are known."""
    turns = measured.turns[measured.turns["counted"].to_numpy()]
    rows = _rows(turns[turns["replica"].notna().to_numpy()], measured.scrape)
    if len(rows) < 2:
        return None
    loads = [row.load_tokens for row in rows]
    known = [load for load in loads if load is not None]
    mean = sum(known) / len(known) if len(known) == len(rows) else 0.0
    return Replicas(rows, max(known) / mean if mean > 0 else None, moves(turns))


def _rows(named: pd.DataFrame, scrape: Scrape) -> tuple[Replica, ...]:
    by_turns = {
        str(name): (len(mine), mine["session_id"].nunique(), _total(mine["prompt_tokens"]))
        for name, mine in named.groupby(named["replica"].astype(str))
    }
    by_page = _by_page(scrape)
    nothing: tuple[None, None, None] = (None, None, None)
    if by_turns and by_page and not set(by_turns) <= set(by_page):
        by_page = {}  # names of another kind, such as pods: nothing says which page is whose
    rows = []
    for name in sorted({*by_turns, *by_page}):
        turns, sessions, tokens = by_turns.get(name, nothing)
        asked, hit = by_page.get(name, (None, None))
        rows.append(Replica(name, turns, sessions, tokens, asked, hit))
    return tuple(rows)


def _total(tokens: pd.Series) -> float | None:
    return float(tokens.sum()) if tokens.notna().all() else None


def _by_page(scrape: Scrape) -> dict[str, tuple[float | None, float | None]]:
    """Host and port of each scraped server -> tokens asked for and their cached share."""
    endpoints = {s.endpoint for s in scrape.find("prefix_cache_queries")}
    found = {}
    for endpoint in endpoints:
        own = scrape.of_endpoint(endpoint)
        asked, rate = own.increase("prefix_cache_queries"), own.hit_rate()
        host = urllib.parse.urlsplit(endpoint).netloc
        found[host] = (None if asked is None else asked.amount, None if rate is None else rate.rate)
    return found


def moves(turns: pd.DataFrame) -> Moves | None:
    """What changing the replica cost; None where no turn and the one before it name theirs."""
    ordered = turns.sort_values(["session_id", "turn_index"], kind="stable")
    same_session = (ordered["session_id"] == ordered["session_id"].shift()).to_numpy()
    next_index = (ordered["turn_index"] == ordered["turn_index"].shift() + 1).to_numpy()
    before = ordered["replica"].astype(object).shift()
    told = (ordered["replica"].notna() & before.notna()).to_numpy()
    reusable = np.fmin(
        ordered["eligible_tokens"].to_numpy(), ordered["planned_prefix_tokens"].to_numpy()
    )
    cached = ordered["cached_tokens"].to_numpy()
    usable = same_session & next_index & told & (reusable > 0) & ~np.isnan(cached)
    if not usable.any():
        return None
    moved = usable & (ordered["replica"].astype(object) != before).to_numpy()
    stayed = usable & ~moved
    kept = float(cached[stayed].sum() / reusable[stayed].sum()) if stayed.any() else 1.0
    lost_by_turn = np.clip(min(kept, 1.0) * reusable[moved] - cached[moved], 0.0, None)
    lost = float(lost_by_turn.sum())
    count = int(moved.sum())
    cost = prefill_s_per_token(ordered)
    return Moves(
        followed=int(usable.sum()),
        moved=count,
        lost_tokens=lost,
        lost_share=lost / float(ordered["prompt_tokens"].sum()),
        ttft_s=lost / count * cost if count and cost is not None else None,
        file_rows=rows_by(ordered[moved], lost_by_turn),
    )
