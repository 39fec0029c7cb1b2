"""What is wrong with an input file, said in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN_FAULTS = 20
SHOWN_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input. `row` is the line in the file, the header being line 1."""

    file: str
    text: str
    row: int | None = None
    column: str | None = None
    value: str | None = None

    def __str__(self) -> str:
        place = self.file
        if self.row is not None:
            place += f", row {self.row}"
        if self.column is not None:
            place += f", column {_printable(self.column)}"
        if self.value is None:
            return f"{place}: {self.text}"
        shown = self.value[:SHOWN_VALUE_CHARS]
        dots = "..." if len(self.value) > SHOWN_VALUE_CHARS else ""
        return f"{place}: {shown!r}{dots}: {self.text}"


def _printable(name: str) -> str:
    """A column name as terminals take it: files that are no UTF-8 hold what cannot be written."""
    return name[:SHOWN_VALUE_CHARS].encode("utf-8", "backslashreplace").decode()


class BadInputError(Exception):
    """An input that cannot be analysed; `faults` holds all that was found, up to a limit."""

    def __init__(self, faults: Sequence[Fault], more: int = 0) -> None:
        self.faults = tuple(faults)
        self.more = more
        super().__init__(describe(self.faults, more))


class FaultLog:
    """Collects faults while a file is read; counts all, keeps the first `SHOWN_FAULTS`."""

    def __init__(self) -> None:
        self.shown: list[Fault] = []
        self.count = 0

    def add(self, fault: Fault) -> None:
        self.count += 1
        if len(self.shown) < SHOWN_FAULTS:
            self.shown.append(fault)

    def raise_if_any(self) -> None:
        if self.count:
            raise BadInputError(self.shown, self.count - len(self.shown))


def describe(faults: Sequence[Fault], more: int) -> str:
    """One line for each fault, and how many were left out."""
    lines = [str(fault) for fault in faults]
    if more:
        lines.append(f"... and {more} more")
    return "\n".join(lines)
