"""What is said when the cells are done: servers that were not as meant, the table, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.report.command import main as report_main

# Sizes that follow from the flags of an arm rather than being chosen.
DERIVED = {"num_gpu_blocks"}


def report(folders: Sequence[Path], out: Path) -> int:
    """Print the table of the arms, write `report.html` and `summary.json`; the report's exit code.

    It is `agentload report FOLDER... --out OUT`, as it can be typed by hand.
    """
    return report_main([*map(str, folders), "--out", str(out)])


def unlike_settings(found: Mapping[str, Mapping[str, Any]], vary: Sequence[str]) -> list[str]:
    """Settings the servers themselves reported that differ between arms and were not meant to.

    `found` maps arm to what its server said. A number of KV blocks that differs is named too: it
    changes what fits into the cache, whatever the flags say.
    """
    meant = {name.replace("-", "_") for name in vary}
    names = sorted({name for settings in found.values() for name in settings} - meant)
    lines = []
    for name in names:
        values = {arm: settings.get(name) for arm, settings in found.items()}
        if len(set(map(str, values.values()))) > 1:
            shown = ", ".join(f"{arm}: {value}" for arm, value in values.items())
            why = " (follows from the flags, and changes the cache)" if name in DERIVED else ""
            lines.append(f"{name} differs between the servers{why}: {shown}")
    return lines
