"""The report of a run, made by a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gevent
from gevent import subprocess
from gevent.lock import BoundedSemaphore

MAX_S = 900.0
_SHOWN_CHARS = 500
_SECRET_VARIABLES = ("OPENAI_API_KEY",)


class ReportMaker:
    """One report at a time: each takes a core and memory for all rows of a run."""

    def __init__(self) -> None:
        self._one = BoundedSemaphore(1)

    def make(self, folder: Path) -> str | None:
        """Write `report.html` and `summary.json` into a run folder; why not, when it fails."""
        with self._one:
            return _make(folder)


def _make(folder: Path) -> str | None:
    env = {k: v for k, v in os.environ.items() if k not in _SECRET_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-m", "agentload", "report", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    said = b""
    with gevent.Timeout(MAX_S, False):
        said = process.communicate()[1]
    if process.poll() is None:
        process.kill()
        process.wait()
        return f"the report took longer than {MAX_S:g} s"
    if process.returncode:
        return said.decode("utf-8", "replace")[-_SHOWN_CHARS:] or "the report could not be made"
    return None
