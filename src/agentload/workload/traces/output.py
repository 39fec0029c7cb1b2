"""A file that appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def write_whole(path: Path, parts: Iterable[bytes], stands: Callable[[], bool]) -> bool:
    """Write parts as they come; the file takes its name once all are there and `stands()` holds.

    Returns whether it did. Until then, and otherwise, a file that was there before stays.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
        keep = stands()
        if keep:
            temporary.replace(path)
        return keep
    finally:
        temporary.unlink(missing_ok=True)
