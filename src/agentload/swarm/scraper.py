"""The scraping process of a run, started and ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gevent
from gevent import subprocess

from agentload.recording.scrape import READY, ScrapeJob

FIRST_SCRAPE_S = 10.0
LAST_SCRAPE_S = 15.0
_SECRET_VARIABLES = ("OPENAI_API_KEY",)


class Scraper:
    """A child process that reads the pages until its input is closed."""

    def __init__(self, folder: Path, urls: tuple[str, ...], run_start_ns: int) -> None:
        job = ScrapeJob(str(folder), urls, run_start_ns)
        environment = {k: v for k, v in os.environ.items() if k not in _SECRET_VARIABLES}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentload.recording.scrape"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._process.stdin.write(job.as_line().encode())
        self._process.stdin.flush()

    def wait_first(self) -> bool:
        """Whether the first scrape was over in time; counters then cover all of the load."""
        line = b""
        with gevent.Timeout(FIRST_SCRAPE_S, False):
            line = self._process.stdout.readline()
        return bool(line.strip() == READY.encode())

    def close(self) -> None:
        """Let it scrape once more and end; kill it when it does not."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=LAST_SCRAPE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
