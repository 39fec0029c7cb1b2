"""The table of arms for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.measured import measure
from analysis.metrics import ALL, Arm, ClassFigures, arms_of, class_figures
from analysis.report import format as f
from analysis.starts import starts

HEADINGS = (
    "turns", "n", "TTFT P50", "TTFT P99", "ITL P50", "ITL P99", "jitter", "cache hit", "queue P50",
    "err",
)  # fmt: skip
_WIDTHS = (7, 5, 8, 10, 7, 8, 7, 6, 8, 4)  # 80 columns with what lies between


def show(folders: Sequence[Path], console: Console | None = None) -> None:
    """Print the table of some run folders, with the verdict on each run above it."""
    console = console or Console()
    arms = arms_of([measure(folder) for folder in folders])
    print_arms([(arm, class_figures(arm)) for arm in arms], console)


def print_arms(arms: Sequence[tuple[Arm, list[ClassFigures]]], console: Console) -> None:
    for arm, _ in arms:
        for line in verdict_lines(arm):
            console.print(escape(line), style="yellow")
    for i, (arm, rows) in enumerate(arms):
        console.print(escape(arm.name), style="bold")
        console.print(build(rows, header=i == 0))
        everything = next(row for row in rows if row.turn_class == ALL)
        if everything.errors:
            console.print(escape(f"errors: {f.counts(everything.errors_by_class)}"))
    if any(has_few(row) for _, rows in arms for row in rows):
        console.print(f.FEW_NOTE, style="dim")


def build(rows: Sequence[ClassFigures], *, header: bool = True) -> Table:
    """One row for each turn class. Jitter is the median of the turns' P99 - P50."""
    table = Table(box=SIMPLE_HEAD, show_header=header, show_edge=False, padding=0)
    for i, (heading, width) in enumerate(zip(HEADINGS, _WIDTHS, strict=True)):
        lines = heading.replace(" ", "\n")
        table.add_column(lines, justify="right" if i else "left", min_width=width)
    for row in rows:
        if row.turn_class != ALL:
            table.add_row(*map(escape, cells(row)))
    return table


def cells(row: ClassFigures) -> list[str]:
    """The columns of one class, from its name on."""
    return [
        row.turn_class,
        str(row.turns),
        f.percentile(row.ttft_s, "p50"),
        f.percentile(row.ttft_s, "p99"),
        f.percentile(row.itl_s, "p50"),
        f.percentile(row.itl_s, "p99"),
        f.seconds(row.jitter_s.p50),
        f.share(row.cache_hit.value),
        f.percentile(row.queue_s, "p50"),
        str(row.errors),
    ]


def has_few(row: ClassFigures) -> bool:
    return bool({"p50", "p99"} & {*row.ttft_s.few_samples, *row.itl_s.few_samples})


def verdict_lines(arm: Arm) -> list[str]:
    """What a reader has to know before the numbers of an arm; empty when all is well."""
    lines = []
    for measured in arm.runs:
        manifest = measured.run.manifest
        if manifest.verdict in ("suspect", "invalid"):
            reasons = "; ".join(manifest.verdict_reasons) or "no reason given"
            lines.append(f"{arm.name}: load generator {manifest.verdict}: {reasons}")
        elif manifest.verdict is None:
            lines.append(f"{arm.name}: the load generator left no verdict on this run")
        lines += [f"{arm.name}: {note}" for note in measured.notes]
    begun = starts(arm)
    if begun is not None and begun.overloaded:
        lines.append(
            f"{arm.name}: overloaded: {begun.achieved:,} of {begun.planned:,} planned session "
            "starts were sent"
        )
    return lines
