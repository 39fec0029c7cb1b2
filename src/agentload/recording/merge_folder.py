"""The folder that a merge builds: beside its place until it is whole."""

from __future__ import annotations

import fcntl
import filecmp
import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agentload.recording.merge_rows import Faults, open_regular

COPIED = ("scrape.csv", "scrape.csv.gz", "metrics_first_*.txt", "metrics_last_*.txt")
_GZIP_LEVEL = 6


class FolderError(Exception):
    """The folder cannot be made; the text says which and why."""


@contextmanager
def writing(folder: Path, name: str, compress: bool) -> Iterator[IO[bytes]]:
    """A file that is on the disk when this ends; the same rows give the same bytes."""
    with (folder / (f"{name}.gz" if compress else name)).open("wb", 1 << 20) as raw:
        if compress:
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield raw
        raw.flush()
        os.fsync(raw.fileno())


@contextmanager
def building(out: Path) -> Iterator[Path]:
    """A folder beside `out`, of this process only; it is gone afterwards, unless renamed.

    A kill leaves it behind. The next merge to the same place takes it over: the lock on it ends
    with the process.
    """
    folder = out.with_name(f".{out.name}.merging")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise FolderError(f"{folder}: cannot be made: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderError(f"{out}: another merge writes it now") from None
        _empty(folder)
        try:
            yield folder
        except OSError as error:
            raise FolderError(f"{folder}: cannot be written: {error}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _empty(folder: Path) -> None:
    try:
        for path in folder.iterdir():
            path.unlink()
    except OSError as error:  # also where another merge has just given it its name
        raise FolderError(f"{folder}: cannot be emptied: {error.strerror}") from None


def copy_others(run: Path, folder: Path, faults: Faults) -> None:
    """What only the owner of a run writes."""
    for pattern in COPIED:
        for path in sorted(run.glob(pattern)):
            try:
                source = open_regular(path)
            except OSError as error:
                faults.add(f"{path}: {error}")
                continue
            with source, writing(folder, path.name, False) as target:
                shutil.copyfileobj(source, target, 1 << 20)


def put(folder: Path, out: Path) -> bool:
    """Give the folder its name; True when the same was there before."""
    if not os.path.lexists(out):
        folder.rename(out)
        parent = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            os.fsync(parent)
        os.close(parent)
        return False
    names = [path.name for path in folder.iterdir()]
    _, other, unreadable = filecmp.cmpfiles(folder, out, names, shallow=False)
    if other or unreadable:
        raise FolderError(f"{out}: exists and holds something else: give another -o")
    return True
