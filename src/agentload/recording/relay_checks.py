"""What a message has to hold before its rows are taken: it came over an open port."""

from __future__ import annotations

from typing import Any

from agentload.recording.csvfile import header_line
from agentload.recording.record import FILE_OF
from agentload.recording.recorder import SHARD_ROWS

SHARD_FILES = tuple(FILE_OF[t] for t in SHARD_ROWS)
_COMMAS = {FILE_OF[t]: header_line(t).count(b",") for t in SHARD_ROWS}


def is_part(part: Any) -> bool:
    """Name of a shard's file, place in it, whole lines."""
    return (
        isinstance(part, list | tuple)
        and len(part) == 3
        and part[0] in SHARD_FILES
        and isinstance(part[1], int)
        and part[1] >= 0
        and isinstance(part[2], bytes)
        and part[2].endswith(b"\n")
    )


def are_rows(name: str, lines: bytes) -> bool:
    """Whether each line is a row of this file, by its commas outside quotation marks."""
    commas = _COMMAS[name]
    return _is_text(lines) and all(_commas(one) == commas for one in lines[:-1].split(b"\n"))


def _commas(line: bytes) -> int:
    if b'"' not in line:
        return line.count(b",")
    parts = line.split(b'"')
    return sum(part.count(b",") for part in parts[::2]) if len(parts) % 2 else -1


def _is_text(lines: bytes) -> bool:
    if b"\r" in lines or b"\0" in lines:
        return False
    try:
        lines.decode()
    except UnicodeDecodeError:
        return False
    return True
