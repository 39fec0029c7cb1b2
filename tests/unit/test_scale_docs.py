"""The table of pods in docs/scale.md follows from the figures above it."""

from __future__ import annotations

import math
import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def figure(name: str) -> float:
    """The figure whose row holds this name."""
    (found,) = [row[1] for row in rows_below("What was measured") if name in row[0]]
    return float(found)


def number(text: str) -> float:
    (found,) = re.findall(r"[\d.,]+", text)
    return float(found.replace(",", ""))


def shown(value: float, text: str) -> bool:
    """Whether a value is what the text says, to half its last digit."""
    digits = text.replace(",", "").split()[0]
    step = 10.0 ** -len(digits.partition(".")[2])
    return abs(value - number(text)) <= step / 2 + 1e-9 or (
        value >= 100 and abs(value / number(text) - 1) < 0.02
    )


def test_each_row_of_the_table_follows_from_the_formulas() -> None:
    sessions, turn_s, kb = figure("`S`"), figure("`T`"), figure("body of a request")
    row_kb, row_ms, worker_share = figure("`B`"), figure("`c_row`"), figure("`c_worker`")
    table = rows_below("Pods for a load")
    assert [number(row[0]) for row in table] == [1e3, 1e4, 1e5, 1e6]
    for row in table:
        users = number(row[0])
        workers, turns = math.ceil(users / sessions), users / turn_s
        with_workers = workers * worker_share / 100
        wanted = [
            workers, turns, turns * kb * 8 / 1e6, turns * row_kb / 1e3,
            with_workers + turns * row_ms / 1e6, with_workers, turns * row_kb * 3600 / 1e6,
        ]  # fmt: skip
        for value, text in zip(wanted, row[1:], strict=True):
            assert shown(value, text), (row[0], value, text)


def test_memory_of_a_worker_is_that_of_its_sessions() -> None:
    each_kb = figure("without its body") + figure("body of a request")
    total_mb = figure("memory of a worker") + figure("`S`") * each_kb / 1e3
    assert f"`180 MB + S * (127 KB + 450 KB)` = {round(total_mb, -1):.0f} MB" in TEXT
