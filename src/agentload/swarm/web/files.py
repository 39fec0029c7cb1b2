"""Files of a run folder for download: those with a known name, and nothing else."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentload.recording.record import (
    CHUNKS_CSV,
    EVENTS_CSV,
    LOADGEN_CSV,
    MANIFEST_JSON,
    SCRAPE_CSV,
    TURNS_CSV,
)

REPORT = "report.html"
SUMMARY = "summary.json"
KNOWN = {
    TURNS_CSV: "text/csv; charset=utf-8",
    CHUNKS_CSV: "text/csv; charset=utf-8",
    SCRAPE_CSV: "text/csv; charset=utf-8",
    LOADGEN_CSV: "text/csv; charset=utf-8",
    EVENTS_CSV: "text/csv; charset=utf-8",
    MANIFEST_JSON: "application/json",
    SUMMARY: "application/json",
    REPORT: "text/html; charset=utf-8",
}
_PAGE = re.compile(r"metrics_(first|last)_\d{1,3}\.txt")
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Download:
    """An open file and what is said of it. `size` is what it had when it was opened."""

    name: str
    kind: str
    size: int
    file: BinaryIO

    def blocks(self) -> Iterator[bytes]:
        """The bytes there were when it was opened; rows may be appended meanwhile."""
        left = self.size
        while left > 0:
            block = self.file.read(min(_BLOCK, left))
            if not block:
                return
            left -= len(block)
            yield block


def kind_of(name: str) -> str | None:
    """The content type of a file that may be downloaded; None for any other name."""
    if _PAGE.fullmatch(name):
        return "text/plain; charset=utf-8"
    return KNOWN.get(name)


def open_file(folder: Path, name: str) -> Download | None:
    """The file of this name; None where it may not be had, or is no plain file of the folder."""
    kind = kind_of(name)
    if kind is None:
        return None
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return None
    return Download(name, kind, found.st_size, os.fdopen(descriptor, "rb"))


def listing(folder: Path) -> list[dict[str, object]]:
    """Name and size of the files that are there, in the order of `KNOWN`, then server pages."""
    order = list(KNOWN)
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        if kind_of(entry.name) is not None and entry.is_file(follow_symlinks=False):
            found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
    found.sort(key=lambda f: (order.index(f[0]) if f[0] in order else len(order), f[0]))
    return [{"name": name, "size_bytes": size} for name, size in found]
