"""Strict reading of a CSV file into blocks of rows.

A byte order mark, quotes and CRLF do not matter. Every other deviation is a fault that names the
row, the column and the value.
"""

from __future__ import annotations

import csv
import gzip
import types
import typing
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Literal

from analysis.faults import BadInputError, Fault, FaultLog

Kind = Literal["text", "float", "int"]

BLOCK_ROWS = 20_000
MAX_FIELD_CHARS = 64 * 1024 * 1024  # a turn of 1M chunks has a field of about 7 MB


@dataclass(frozen=True, slots=True)
class Column:
    """What a column may hold; an empty field is "not measured", allowed unless `required`."""

    name: str
    kind: Kind
    required: bool = False
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a file as text, one list per column of the spec."""

    lines: list[int]
    cells: dict[str, list[str]]


@dataclass(slots=True)
class ReadReport:
    """What reading a file left out: a torn last line, and rows dropped on request."""

    rows: int = 0
    truncated_lines: int = 0
    dropped_rows: int = 0


def columns_of(record: type, allowed: dict[str, frozenset[str]] | None = None) -> list[Column]:
    """The columns of a record type of `agentload.recording.record`, from its annotations."""
    hints = typing.get_type_hints(record)
    return [_column(f.name, hints[f.name], (allowed or {}).get(f.name)) for f in fields(record)]


def _column(name: str, hint: object, allowed: frozenset[str] | None) -> Column:
    union = isinstance(hint, types.UnionType)
    parts = set(typing.get_args(hint)) if union else {hint}
    kind: Kind = "int" if int in parts else "float" if float in parts else "text"
    return Column(name, kind, required=type(None) not in parts, allowed=allowed)


def open_text(path: Path) -> IO[str]:
    """Open a CSV, gzip-compressed or not. Bytes that are no UTF-8 survive as surrogates."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_blocks(
    path: Path,
    columns: Sequence[Column],
    log: FaultLog,
    report: ReadReport,
    *,
    finished: bool = True,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[Block]:
    """Yield the rows of `path` in blocks. Rows with a wrong number of fields go to `log`.

    `finished` says that the writer ended properly: only then is a last line without a line end
    taken as whole.
    Raises `BadInputError` for a header that does not fit.
    """
    csv.field_size_limit(MAX_FIELD_CHARS)
    with open_text(path) as stream:
        source = _Lines(stream, path.name)
        reader = csv.reader(source)
        header = _next_row(reader, path, log)
        if header is None:
            return
        places = _header_places(path, header, columns)
        rows: list[list[str]] = []
        lines: list[int] = []
        while (row := _next_row(reader, path, log)) is not None:
            torn = source.torn and (len(row) < len(header) or not finished)
            if torn or len(row) != len(header):
                _refuse_row(path, reader.line_num, row, header, torn, log, report)
                continue
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) >= block_rows:
                yield _block(rows, lines, places)
                report.rows += len(rows)
                rows, lines = [], []
        if rows:
            yield _block(rows, lines, places)
            report.rows += len(rows)


class _Lines:
    """Lines of a stream; remembers whether the last one read had a line end."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream = stream
        self._name = name
        self.torn = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = self._stream.readline()
        except EOFError:  # a .gz whose writer was killed
            self.torn = True
            raise StopIteration from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadInputError([Fault(self._name, f"is damaged: {error}")]) from None
        if not line:
            raise StopIteration
        self.torn = not line.endswith(("\n", "\r"))
        return line


def _next_row(reader: Iterator[list[str]], path: Path, log: FaultLog) -> list[str] | None:
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            log.add(Fault(path.name, f"not a CSV row: {error}", getattr(reader, "line_num", None)))
            continue
        if row != []:  # blank lines
            return row


def _header_places(path: Path, header: list[str], columns: Sequence[Column]) -> dict[str, int]:
    names = {c.name for c in columns}
    faults = [Fault(path.name, "column is missing", 1, c) for c in sorted(names - set(header))]
    if faults and len(header) == 1 and ";" in header[0]:
        raise BadInputError(
            [Fault(path.name, "fields are separated by ';', a comma is needed: save as CSV", 1)]
        )
    for name in sorted(set(header) - names):
        faults.append(Fault(path.name, "unknown column", 1, name))
    for name in sorted({n for n in header if header.count(n) > 1}):
        faults.append(Fault(path.name, "column is there more than once", 1, name))
    if faults:
        raise BadInputError(faults)
    return {name: header.index(name) for name in (c.name for c in columns)}


def _refuse_row(
    path: Path,
    line: int,
    row: list[str],
    header: list[str],
    torn: bool,
    log: FaultLog,
    report: ReadReport,
) -> None:
    if torn:
        report.truncated_lines += 1
        return
    report.dropped_rows += 1
    log.add(Fault(path.name, f"{len(row)} fields, the header has {len(header)}", line))


def _block(rows: list[list[str]], lines: list[int], places: dict[str, int]) -> Block:
    by_place = list(zip(*rows, strict=True))
    return Block(lines, {name: list(by_place[place]) for name, place in places.items()})
