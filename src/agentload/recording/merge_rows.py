"""Rows of several folders as one stream, checked line by line and never held in memory."""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import os
import stat
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import IO

import numpy as np

from agentload.recording.csvfile import header_line
from agentload.recording.record import (
    CHUNKS_CSV,
    EVENTS_CSV,
    LOADGEN_CSV,
    TURNS_CSV,
    ChunkTrace,
    LoadgenSample,
    RunEvent,
    TurnRecord,
    columns,
)
from agentload.recording.shard import Seal

MAX_LINE_BYTES = 64 * 1024 * 1024  # a turn of 1M chunks has a row of about 7 MB
SHOWN_FAULTS = 20
_BUFFER_BYTES = 1 << 16

Keyed = tuple[float, bytes]


@dataclass(slots=True)
class Faults:
    """All that is wrong with what was given: counts all, keeps the first `SHOWN_FAULTS`."""

    shown: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, *texts: str) -> None:
        self.count += len(texts)
        self.shown += texts[: max(0, SHOWN_FAULTS - len(self.shown))]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a row has its time (the first of `times` that is not empty) and its request."""

    name: str
    row_type: type
    times: tuple[int, ...]
    request: int | None = None

    @property
    def width(self) -> int:
        return len(columns(self.row_type))

    @property
    def header(self) -> bytes:
        return header_line(self.row_type)


_TURN = columns(TurnRecord).index
LAYOUTS = (
    Layout(TURNS_CSV, TurnRecord, (_TURN("end_s"), _TURN("call_start_s")), _TURN("request_id")),
    Layout(CHUNKS_CSV, ChunkTrace, (1,), 0),
    Layout(LOADGEN_CSV, LoadgenSample, (0,)),
    Layout(EVENTS_CSV, RunEvent, (0,)),
)


@dataclass(slots=True)
class RowFile:
    """One CSV file, plain or gzip-compressed. After the pass: what it held.

    `begins` is what every row has to begin with. `seal` is None where the writer did not end well:
    only then may the last line be torn.
    """

    folder: Path
    layout: Layout
    faults: Faults
    begins: bytes = b""
    seal: Seal | None = None
    ended_well: bool = False
    skip: int = 0  # rows that the run has already
    rows: int = 0
    torn: bool = False
    _requests: array[int] = field(default_factory=lambda: array("q"))

    @property
    def label(self) -> str:
        return f"{self.folder / self.layout.name}"

    def lines(self) -> Iterator[bytes]:
        """Whole lines without the header; faults of the file go to `faults`."""
        self.rows, self.torn = 0, False
        try:
            with open_rows(self.folder, self.layout.name) as file:
                yield from self._lines(file)
        except (OSError, EOFError, zlib.error) as error:
            self.faults.add(f"{self.label}: cannot be read: {error}")

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        header = file.readline(MAX_LINE_BYTES)
        if header != self.layout.header:
            self.faults.add(f"{self.label}, row 1: other columns than this version writes")
            return
        size, crc = len(header), zlib.crc32(header)
        while line := file.readline(MAX_LINE_BYTES):
            size, crc = size + len(line), zlib.crc32(line, crc)
            if not line.endswith(b"\n"):
                self._ends_torn(line)
                break
            self.rows += 1
            yield line
        if self.seal is not None and self.seal != Seal(self.rows, size, crc):
            self.faults.add(
                f"{self.label}: {self.rows} rows in {size} bytes, crc32 {crc}: sealed were "
                f"{self.seal.rows} rows in {self.seal.size_bytes} bytes, crc32 {self.seal.crc32}"
            )

    def _ends_torn(self, line: bytes) -> None:
        self.torn = True
        where = f"{self.label}, row {self.rows + 2}"
        if len(line) >= MAX_LINE_BYTES:
            self.faults.add(f"{where}: longer than {MAX_LINE_BYTES:,} bytes")
        elif self.ended_well and self.seal is None:
            self.faults.add(f"{where}: is cut")

    def keyed(self, requests: array[int] | None) -> Iterator[Keyed]:
        """Rows after the first `skip` with their time. Hashes of the requests go to `requests`."""
        for line in self.lines():
            if self.rows <= self.skip:
                continue
            time_s = self._checked(line, requests)
            if time_s is not None:
                yield time_s, line

    def _checked(self, line: bytes, requests: array[int] | None) -> float | None:
        """The time of a row; None when the row cannot be one of this file."""
        layout = self.layout
        fields = _fields(line, layout)
        fault = None
        if fields is None:
            fault = f"not {layout.width} fields"
        elif not line.startswith(self.begins):
            fault = f"does not begin with {self.begins.decode()!r}: it is of another run or worker"
        else:
            time_s = _time_s(fields, layout.times)
            if time_s is not None:
                if requests is not None and layout.request is not None:
                    requests.append(hash(fields[layout.request]))
                return time_s
            fault = "no time in it"
        self.faults.add(f"{self.label}, row {self.rows + 1}: {fault}")
        return None


@contextmanager
def open_rows(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A regular file `name` or `name.gz`; OSError for a link, for both, for none."""
    found = [path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)]
    if len(found) > 1:
        raise OSError(f"there is a {name}.gz beside it")
    if not found:
        raise OSError("is missing")
    with open_regular(found[0]) as raw:
        if found[0].suffix == ".gz":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield io.BufferedReader(unpacked, _BUFFER_BYTES)
        else:
            yield raw


def open_regular(path: Path) -> IO[bytes]:
    if path.is_symlink():
        raise OSError("is a symbolic link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb", _BUFFER_BYTES)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("is no regular file")
    return file


def _fields(line: bytes, layout: Layout) -> list[bytes] | None:
    """The fields up to the last that is looked at; None when the row has not all its columns."""
    last = max(*layout.times, layout.request or 0)
    if b'"' not in line:
        if line.count(b",") != layout.width - 1:
            return None
        return line.split(b",", last + 1)
    row = next(csv.reader([line.decode("utf-8", "surrogateescape")]))
    if len(row) != layout.width:
        return None
    return [value.encode("utf-8", "surrogateescape") for value in row]


def _time_s(fields: list[bytes], places: tuple[int, ...]) -> float | None:
    text = next((fields[i] for i in places if fields[i]), b"")
    try:
        time_s = float(text)
    except ValueError:
        return None
    return time_s if abs(time_s) < float("inf") else None


def count_delivered(base: RowFile, shards: Sequence[RowFile]) -> None:
    """Set `skip` of each shard: how many of its first rows the run has already.

    A worker's rows arrive in order and whole, so what the run has of a shard is its beginning.
    """
    streams = [replace(shard, faults=Faults()).lines() for shard in shards]
    heads = {line: i for i, stream in enumerate(streams) if (line := next(stream, None))}
    for line in replace(base, faults=Faults()).lines():
        i = heads.pop(line, None)
        if i is None:
            continue
        shards[i].skip += 1
        following = next(streams[i], None)
        if following is not None:
            heads[following] = i


def merged_lines(files: Sequence[RowFile], requests: array[int] | None) -> Iterator[bytes]:
    """All rows by time; rows of a file keep their order, at one time the earlier file is first."""
    streams = [file.keyed(requests) for file in files]
    return map(itemgetter(1), heapq.merge(*streams, key=itemgetter(0)))


def requests_there_twice(requests: array[int], folder: Path, layout: Layout) -> list[str]:
    """Names of requests with more than one row in a file, at most as many as are shown."""
    hashes = np.sort(np.frombuffer(requests, np.int64))
    double = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not double:
        return []
    seen: set[bytes] = set()
    names: list[str] = []
    for line in RowFile(folder, layout, Faults()).lines():
        request = (_fields(line, layout) or [b""])[layout.request or 0]
        if hash(request) not in double:
            continue
        if request in seen and len(names) < SHOWN_FAULTS:
            names.append(request.decode("utf-8", "replace"))
        seen.add(request)
    return names
