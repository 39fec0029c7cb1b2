"""The rows of the Agents tab: text for people, a dash for what was not measured."""

from __future__ import annotations

import pytest

from agentload.live.snapshot import ClassFigures, LatencyFigures, LoadFigures, Snapshot
from agentload.swarm.web.tab import duration, extended_stats, share, template_args


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.000123, "0.123 ms"),
        (0.0123456, "12.3 ms"),
        (0.5126, "513 ms"),
        (1.5, "1.50 s"),
        (123.4, "123 s"),
    ],
)
def test_durations_have_three_digits(seconds: float | None, text: str) -> None:
    assert duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == text


def test_every_cell_of_a_row_has_a_column() -> None:
    figures = ClassFigures(
        "tool", "base", turns=3, errors=1, errors_by_class={"http_500": 1},
        ttft=LatencyFigures(2, p50_s=0.25), cache_hit_ratio=0.975,
    )  # fmt: skip
    snapshot = Snapshot(
        "id", "/runs/id", "base", "s", "m", "running", 9.0, "run", 8.0, None, None, 1, 1, 0, 3,
        LoadFigures(), (figures,),
    )  # fmt: skip
    ((stats,), columns) = (
        extended_stats([snapshot]),
        {c["key"] for c in template_args(".")["extended_tables"][0]["structure"]},
    )
    (row,) = stats["data"]
    assert set(row) == columns | {"name"}
    assert all(isinstance(cell, str) for cell in row.values())
    assert (row["errors"], row["stalls"], row["itl_p99"]) == ("http_500 1", "–", "–")
    assert (row["cache_hit"], share(None)) == ("97.5%", "–")
