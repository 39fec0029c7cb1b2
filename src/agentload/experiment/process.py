"""Child processes that end with their parent, whole process groups at a time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from agentload.experiment.reaper import Reaper

PR_SET_PDEATHSIG = 1


class Child:
    """A command in a process group of its own, its output in a log file.

    Ending it signals the whole group, so that a server's own children (vLLM has three processes)
    go with it. When this process dies without a word, the reaper ends the group; on Linux the
    kernel asks its leader, too. `cpus` are the only ones it may run on.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        cpus: frozenset[int] | None = None,
        reaper: Reaper | None = None,
    ) -> None:
        self.command = tuple(command)
        self.log = log
        self._reaper = reaper
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
                # one system call through a library loaded before the fork: no lock is taken
                preexec_fn=before_exec(cpus),  # noqa: PLW1509
            )
        if reaper is not None:
            reaper.add(self._process.pid)

    @property
    def pid(self) -> int:
        """Of the leader."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None when it still runs after the time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Ask the leader to end in order, as Ctrl-C in its terminal would."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def end(self, grace_s: float) -> None:
        """Ask the group to end, wait, then kill what is left of it."""
        self._signal(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # children that outlived their leader
        if self._reaper is not None:
            self._reaper.remove(self._process.pid)

    def last_lines(self, count: int = 12) -> str:
        """The end of its log, for the message about a start that failed."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-count:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def before_exec(cpus: frozenset[int] | None = None) -> Callable[[], None] | None:
    """What a child does before it becomes its command; None where that cannot be had."""
    return partial(_prepare, cpus) if sys.platform == "linux" else None


def _prepare(cpus: frozenset[int] | None) -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # so that it can end its own children
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
