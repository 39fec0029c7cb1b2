"""The Agents tab of Locust's own web page: a table, its rows within the answer it asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentload.live.snapshot import ClassFigures, Snapshot

TAB = "agents"
_NONE = "–"
_GAP = "\N{NO-BREAK SPACE}"
_COLUMNS = {
    "turn_class": "Turns",
    "arm": "Arm",
    "turns": "# Measured",
    "in_flight": "# In flight",
    "ttft_p50": "TTFT P50",
    "ttft_p90": "TTFT P90",
    "ttft_p99": "TTFT P99",
    "itl_p50": "ITL P50",
    "itl_p99": "ITL P99",
    "jitter": "Jitter P50",
    "stalls": "Stalls",
    "tokens_per_s": "Tokens/s",
    "cache_hit": "Cache hit",
    "slo": "SLO met",
    "errors": "Errors",
}


def template_args(page_path: str) -> dict[str, Any]:
    """What Locust's page is told: a tab, its table, and links in its list of downloads."""
    structure = [{"key": key, "title": title} for key, title in _COLUMNS.items()]
    return {
        "extended_tabs": [{"title": "Agents", "key": TAB}],
        "extended_tables": [{"key": TAB, "structure": structure}],
        "extended_csv_files": [
            {"href": page_path, "title": "Agents: live charts, start form, files of the run"}
        ],
    }


def extended_stats(snapshots: Iterable[Snapshot]) -> list[dict[str, Any]]:
    """The rows of the table; cells are text, so that what was not measured is a dash."""
    shown = [figures for snapshot in snapshots for figures in snapshot.classes]
    # Locust sorts rows by their name, as text.
    rows = [{"name": f"{place:04}", **_row(figures)} for place, figures in enumerate(shown)]
    return [{"key": TAB, "data": rows}]


def _row(f: ClassFigures) -> dict[str, str]:
    errors = ", ".join(f"{name} {count}" for name, count in f.errors_by_class.items())
    return {
        "turn_class": f.turn_class,
        "arm": f.arm,
        "turns": str(f.turns),
        "in_flight": str(f.in_flight),
        "ttft_p50": duration(f.ttft.p50_s),
        "ttft_p90": duration(f.ttft.p90_s),
        "ttft_p99": duration(f.ttft.p99_s),
        "itl_p50": duration(f.itl.p50_s),
        "itl_p99": duration(f.itl.p99_s),
        "jitter": duration(f.jitter.p50_s),
        "stalls": _NONE if f.stalls is None else str(f.stalls),
        "tokens_per_s": _NONE if f.output_tokens_per_s is None else f"{f.output_tokens_per_s:.1f}",
        "cache_hit": share(f.cache_hit_ratio),
        "slo": share(f.slo_share),
        "errors": errors or "0",
    }


def duration(seconds: float | None) -> str:
    """Three digits with the unit that fits; a dash where nothing was measured."""
    if seconds is None:
        return _NONE
    if seconds < 1.0:
        return f"{seconds * 1e3:{'.3g' if seconds < 0.1 else '.0f'}}{_GAP}ms"
    return f"{seconds:{'.2f' if seconds < 100 else '.0f'}}{_GAP}s"


def share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"
