"""Append-only CSV files whose every finished line survives the death of the process."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from agentload.recording.record import Row, columns, csv_values

# A row is one line: the count of line ends is the count of rows, and a cut last line shows.
_LINE_BREAKS = str.maketrans({"\n": " ", "\r": " ", "\x00": " ", "\x0b": " ", "\x0c": " "})


def csv_line(values: list[str] | tuple[str, ...]) -> bytes:
    """The values as one CSV line with its line end; line breaks inside a value become spaces."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([v.translate(_LINE_BREAKS) for v in values])
    return text.getvalue().encode("utf-8", "replace")


def row_line(row: Row) -> bytes:
    return csv_line(csv_values(row))


def header_line(row_type: type) -> bytes:
    return csv_line(columns(row_type))


class AppendOnlyFile:
    """Whole lines written with one system call each, so a kill between two calls tears none.

    There is no buffer of our own: what `append` returned from is in the page cache and stays when
    the process is killed. `close` also sends it to the disk.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        if os.fstat(self._fd).st_size == 0:
            self.append(header)

    def append(self, lines: bytes) -> None:
        """Write complete lines. OSError (a full disk) leaves the file as it was before the call."""
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
