"""What Locust's own CSVs alone can say, for people who ran plain Locust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.locust_csv import ROUNDING, LocustStats, load_history, load_stats
from analysis.report import format as f

STATS_SUFFIX = "_stats.csv"


def stats_files(path: Path) -> list[Path]:
    """The `*_stats.csv` at or in `path`; empty when there is none."""
    if path.is_file() and path.name.endswith(STATS_SUFFIX):
        return [path]
    return sorted(path.glob(f"*{STATS_SUFFIX}")) if path.is_dir() else []


def show(path: Path, console: Console) -> bool:
    """Print the rows of real requests; returns whether there was a request."""
    stats = load_stats(path)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    names = ("name", "n", "failed", "per s", "mean", "P50 ≈", "P95 ≈", "P99 ≈", "max")
    for name in names:
        table.add_column(name, justify="left" if name == "name" else "right")
    for row in stats.rows:
        shown = (row.percentiles_ms[p] for p in ("50%", "95%", "99%"))
        table.add_row(
            escape(f"{row.method} {row.name}"),
            str(row.requests),
            str(row.failures),
            f.number(row.requests_per_s),
            f.seconds(row.mean_ms / 1e3),
            *(f.seconds(None if value is None else value / 1e3) for value in shown),
            f.seconds(row.max_ms / 1e3),
        )
    console.print(escape(str(path)), style="bold")
    console.print(table)
    for line in _notes(path, stats):
        console.print(line, style="dim", markup=False)
    return stats.requests > 0


def _notes(path: Path, stats: LocustStats) -> Iterator[str]:
    yield (
        f"Locust rounds response times to two digits before it forms percentiles: ≈ is up to "
        f"{ROUNDING:.0%} off and cut at the maximum. Response times are of whole requests; TTFT, "
        "gaps, tokens and cache hits need a run folder."
    )
    if stats.custom_rows:
        yield (
            "Left out, as they are no requests: " + ", ".join(stats.custom_rows) + ". The "
            "Aggregated row mixes them with requests and is not used."
        )
    history = path.with_name(path.name.replace(STATS_SUFFIX, "_stats_history.csv"))
    if history.is_file():
        users = load_history(history)["User Count"]
        if len(users):
            yield f"Users: up to {users.max():.0f}."
