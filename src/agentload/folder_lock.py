"""Tells a folder whose writer is alive from one that was left behind."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LOCK = "lock"


class FolderLock:
    """Held by the process that writes into a folder; the kernel lets go of it when that dies."""

    def __init__(self, folder: Path) -> None:
        """Take it; OSError where another process has it."""
        self._fd = os.open(folder / LOCK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def left_behind(folder: Path) -> bool:
    """Whether a process of this machine wrote here and is no more; False where none is."""
    return _held(folder) is False


def is_written(folder: Path) -> bool:
    """Whether a process of this machine still writes here."""
    return _held(folder) is True


def _held(folder: Path) -> bool | None:
    """None where no process of this machine ever had it."""
    try:
        fd = os.open(folder / LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
