"""What an experiment shows in the terminal while it works."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from agentload.experiment.plan import Cell
from agentload.experiment.state import CellState
from agentload.recording.record import TURNS_CSV

PLAIN_LINE_EVERY_S = 10.0


class TerminalProgress:
    """One bar over the cells and one line for the cell under way; plain lines when not a terminal.

    Turns are counted in the run folder itself, so what is shown is what has been recorded.
    """

    def __init__(self, console: Console, cells: int, expected_cell_s: float | None) -> None:
        self._console = console
        self._expected_cell_s = expected_cell_s
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} arms"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("experiment", total=cells, note="")
        self._next_line_s = 0.0
        self._done = 0
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
        self._next_line_s, self._rows = 0.0, None
        self._bar.update(self._task, description=cell.arm.name, note="starting its server")
        self._console.print(f"[{cell.index + 1}/{total}] {cell.arm.name}: starting its server")

    def loading(self, cell: Cell, folder: Path, elapsed_s: float) -> None:
        of = (
            ""
            if self._expected_cell_s is None
            else f" of at most {self._expected_cell_s:.0f} s after warm-up"
        )
        if self._rows is None:
            self._rows = RowCount(folder / TURNS_CSV)
        note = f"{self._rows.now()} turns recorded, {elapsed_s:.0f} s{of}"
        self._bar.update(self._task, note=note)
        if not self._console.is_terminal and elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + PLAIN_LINE_EVERY_S
            self._console.print(f"    {cell.arm.name}: {note}")

    def cell_ends(self, cell: Cell, state: CellState) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        self._console.print(f"    {cell.arm.name}: {state}")


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
