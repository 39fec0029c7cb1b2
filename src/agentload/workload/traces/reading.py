"""Lines of a trace file, with a report of those that cannot be used."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import orjson

from agentload.workload.traces.fields import LineError
from agentload.workload.traces.record import TraceError

_READ_CHARS = 1 << 20
_MOST_ITEM_CHARS = 1 << 28


@dataclass(slots=True)
class Report:
    """What became of a trace. `on_bad` is called with each bad line as it is met."""

    on_bad: Callable[[str], None]
    bad: int = 0
    sessions: int = 0
    calls: int = 0
    lost: dict[str, int] = field(default_factory=dict)  # what could not be carried over: how often

    def reject(self, place: str, problem: str) -> None:
        self.bad += 1
        self.on_bad(f"{place}: {problem}")

    def lose(self, what: str) -> None:
        self.lost[what] = self.lost.get(what, 0) + 1


def open_text(path: Path) -> IO[str]:
    """The file as UTF-8 text; gzip by its suffix. Bytes that are not UTF-8 become U+FFFD."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        file = opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    return cast(IO[str], file)


def json_lines(path: Path, report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of every line; a line that is none is reported."""
    with open_text(path) as file:
        for count, line in enumerate(_lines(path, file), 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                report.reject(f"line {count}", f"not JSON: {error.msg}")
                continue
            if isinstance(row, dict):
                yield f"line {count}", row
            else:
                report.reject(f"line {count}", "not a JSON object")


def csv_rows(
    path: Path, report: Report, needed: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of a CSV file with at least the `needed` columns."""
    with open_text(path) as file:
        reader = csv.DictReader(_lines(path, file))
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{path}: no column {', '.join(missing)} in its first line")
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                report.reject(f"line {reader.line_num}", str(error))
                continue
            if row is None:
                return
            place = f"line {reader.line_num}"
            if None in row or None in row.values():
                report.reject(place, f"not {len(reader.fieldnames or ())} fields")
            else:
                yield place, row


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    try:
        yield from file
    except (OSError, EOFError) as error:  # a gzip stream that is cut or damaged
        raise TraceError(f"{path}: {error}") from None


def json_objects(path: Path, report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of a file with one object, an array of objects, or JSON Lines.

    The file is read in parts, so that memory holds one object at a time.
    """
    with open_text(path) as file:
        for count, item in enumerate(_values(path, file), 1):
            if isinstance(item, dict):
                yield f"item {count}", item
            else:
                report.reject(f"item {count}", "not a JSON object")


def _values(path: Path, file: IO[str]) -> Iterator[Any]:
    decoder, buffer, done, started = json.JSONDecoder(), "", False, False
    while True:
        buffer = buffer.lstrip(" \t\r\n,") if started else buffer.lstrip()
        if not started and buffer:
            started = True
            buffer = buffer.removeprefix("[")
            continue
        if buffer.startswith("]") and not buffer[1:].strip(" \t\r\n"):
            buffer = ""
        try:
            value, end = decoder.raw_decode(buffer)
            if end < len(buffer) or done:  # a number at the end of a part may go on
                buffer = buffer[end:]
                yield value
                continue
        except ValueError:
            if done or len(buffer) > _MOST_ITEM_CHARS:
                if buffer:
                    raise TraceError(f"{path}: not JSON near {buffer[:60]!r}") from None
                return
        part = next(_parts(path, file))
        done = not part
        buffer += part


def _parts(path: Path, file: IO[str]) -> Iterator[str]:
    try:
        yield file.read(_READ_CHARS)
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: {error}") from None


__all__ = ["LineError", "Report", "csv_rows", "json_lines", "json_objects", "open_text"]
