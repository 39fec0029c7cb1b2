"""Ends the process groups of an experiment that was killed.

A process of its own, started as `python -m agentload.experiment.reaper`. On standard input it is
told which groups there are (`+PID`) and which ended (`-PID`). The end of the input is the end of
the experiment, also when that was killed without a word: what is left is asked to end, then killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from types import TracebackType

GRACE_S = 20.0  # a load writes its run folder in this time
LOOK_EVERY_S = 0.1


class Reaper:
    """The experiment's end of it; a context manager."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s

    def __enter__(self) -> Reaper:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentload.experiment.reaper", str(self._grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # out of reach of Ctrl-C and of whoever kills our group
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=self._grace_s + 5.0)

    def add(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it was killed: nothing else depends on it
            self._process.stdin.write(line)
            self._process.stdin.flush()


def groups_left(lines: Iterable[str]) -> set[int]:
    """The groups that were told of and did not end, when the input ends."""
    left: set[int] = set()
    for line in lines:
        number = int(line[1:])
        if line[0] == "+":
            left.add(number)
        else:
            left.discard(number)
    return left


def end_groups(groups: Iterable[int], grace_s: float) -> None:
    """SIGTERM to each group; SIGKILL to those that are still there after `grace_s`."""
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    pause = threading.Event()
    for _ in range(round(grace_s / LOOK_EVERY_S)):
        left = {group for group in left if _signal(group, 0)}
        if not left:
            return
        pause.wait(LOOK_EVERY_S)
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether there was such a group."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_groups(groups_left(sys.stdin), float(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
