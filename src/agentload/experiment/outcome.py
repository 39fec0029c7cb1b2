"""What is said when the cells are done: the table, the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.report.command import main as report_main


def report(folders: Sequence[Path], out: Path) -> int:
    """Print the table of the arms, write `report.html` and `summary.json`; the report's exit code.

    It is `agentload report FOLDER... --out OUT`, as it can be typed by hand.
    """
    return report_main([*map(str, folders), "--out", str(out)])
