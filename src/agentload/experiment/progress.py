"""What an experiment shows in the terminal while it works."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from agentload.clock import NS_PER_S, MonotonicClock
from agentload.experiment.plan import Cell
from agentload.experiment.state import CellState
from agentload.recording.record import TURNS_CSV

PLAIN_LINE_EVERY_S = 10.0
_CLOCK = MonotonicClock()


class TerminalProgress:
    """One line with a bar under the lines of the cells that are done; plain lines when not a
    terminal.

    Turns are counted in the run folder itself, so what is shown is what has been recorded. The time
    left goes by the cells that were done; before the first, by the stages.
    """

    def __init__(self, console: Console, cells: int, expected_cell_s: float) -> None:
        self._console = console
        self._cells = cells
        self._expected_cell_s = expected_cell_s
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("", total=cells, note="")
        self._next_line_s = 0.0
        self._done = 0
        self._done_s = 0.0  # of the cells that are done, with their servers' starts
        self._began_s = 0.0
        self._rows: RowCount | None = None

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def cell_starts(self, cell: Cell, total: int) -> None:
        self._next_line_s, self._rows, self._began_s = 0.0, None, _now_s()
        description = f"[{cell.index + 1}/{total}] {cell.arm.name}"
        self._show(description=description.replace("[", "\\["), note="starting its server")
        if not self._console.is_terminal:
            self._console.print(f"{description}: starting its server", markup=False)

    def examining(self, cell: Cell) -> None:  # noqa: ARG002 - of the protocol
        self._show(note="asking the server what is in force")

    def loading(self, cell: Cell, folder: Path, elapsed_s: float) -> None:
        if self._rows is None:
            self._rows = RowCount(folder / TURNS_CSV)
        turns = self._rows.now()
        share = min(0.99, elapsed_s / max(self._cell_s(), 1.0))
        note = f"{turns} turns recorded, {in_words(elapsed_s)}"
        self._show(completed=self._done + share, note=f"{note}, {self._left(share)}")
        if not self._console.is_terminal and elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + PLAIN_LINE_EVERY_S
            self._console.print(f"    {cell.arm.name}: {note}, {self._left(share)}", markup=False)

    def cell_ends(self, cell: Cell, state: CellState) -> None:
        took_s = _now_s() - self._began_s
        self._done += 1
        self._done_s += took_s
        turns = "" if self._rows is None else f", {self._rows.now()} turns"
        self._show(completed=self._done)
        self._console.print(f"{cell.run_id}: {state}{turns} in {in_words(took_s)}", markup=False)

    def _cell_s(self) -> float:
        """How long a cell is likely to take."""
        return self._done_s / self._done if self._done else self._expected_cell_s

    def _left(self, share: float) -> str:
        if not self._done:
            return f"stages of at most {in_words(self._expected_cell_s)} after warm-up"
        return f"about {in_words((self._cells - self._done - share) * self._cell_s())} left"

    def _show(self, **changes: object) -> None:
        self._bar.update(self._task, **changes)  # type: ignore[arg-type]


def in_words(seconds: float) -> str:
    """A duration as people say it: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def _now_s() -> float:
    return _CLOCK.now_ns() / NS_PER_S


class RowCount:
    """Rows of a growing CSV file under its header, reading only what is new; 0 before it exists."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0

    def now(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return 0
        self._offset += len(new)
        self._lines += new.count(b"\n")
        return max(0, self._lines - 1)
