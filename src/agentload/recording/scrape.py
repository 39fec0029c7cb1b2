"""The process that reads the servers' `/metrics` pages beside a run.

    python -m agentload.recording.scrape < job

It is a process of its own, since parsing a page of 60 KB takes 8 ms and more in which no stream of
the load generator could be read. The job is one line of JSON on standard input; the run ends when
standard input closes, also when the process that started it was killed. `scrape.csv` is its own;
to `events.csv` it appends.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from agentload.client.base_url import server_root
from agentload.clock import NS_PER_S, Clock, MonotonicClock, RunClock
from agentload.recording.csvfile import AppendOnlyFile, header_line, row_line
from agentload.recording.metrics_page import MAX_PAGE_BYTES, PageError, samples
from agentload.recording.record import EVENTS_CSV, SCRAPE_CSV, RunEvent, ScrapeSample

TIMEOUT_S = 5.0
READY = "ready"


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """What to scrape, how often, on which run's clock, into which folder."""

    folder: str
    urls: tuple[str, ...]
    run_start_ns: int  # CLOCK_MONOTONIC, which all processes of a machine share
    every_s: float = 1.0

    def as_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> ScrapeJob:
        raw = json.loads(line)
        return cls(**{**raw, "urls": tuple(raw["urls"])})


def metrics_urls(base_url: str, given: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The pages to read: those given, else `/metrics` at the root of the base URL."""
    return given or (f"{server_root(base_url)}/metrics",)


def without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def page_file(which: Literal["first", "last"], index: int) -> str:
    """The file in the run folder that keeps a page as text; `index` counts the pages scraped."""
    return f"metrics_{which}_{index}.txt"


class Endpoint:
    """One page, read again and again by one thread."""

    def __init__(self, index: int, url: str, job: ScrapeJob, clock: Clock) -> None:
        self._url = url
        self._name = without_secrets(url)
        self._index = index
        self._folder = Path(job.folder)
        self._clock = clock
        self._run = RunClock(job.run_start_ns, 0.0)
        self._rows = AppendOnlyFile(self._folder / SCRAPE_CSV, header_line(ScrapeSample))
        self._events = AppendOnlyFile(self._folder / EVENTS_CSV, header_line(RunEvent))
        self._fault: str | None = None
        self._last_page: bytes | None = None
        self._opener = urllib.request.build_opener(*_proxy_handlers(url))

    def read_once(self) -> None:
        """One scrape; a fault becomes an event when it begins and when it ends, never an error."""
        before_ns = self._clock.now_ns()
        try:
            page = self._fetch()
            time_s = self._run.seconds((before_ns + self._clock.now_ns()) // 2)
            rows = b"".join(
                map(row_line, samples(page.decode("utf-8", "replace"), self._name, time_s))
            )
        except (OSError, http.client.HTTPException, PageError, ValueError) as error:
            self._note_fault(_fault_text(error))
            return
        self._note_fault(None)
        self._rows.append(rows)
        if self._last_page is None:
            self._keep_page("first", page)
        self._last_page = page

    def close(self) -> None:
        if self._last_page is not None:
            self._keep_page("last", self._last_page)
        self._rows.close()
        self._events.close()

    def _fetch(self) -> bytes:
        with self._opener.open(self._url, timeout=TIMEOUT_S) as answer:
            page: bytes = answer.read(MAX_PAGE_BYTES + 1)
        if len(page) > MAX_PAGE_BYTES:
            raise PageError(f"more than {MAX_PAGE_BYTES} bytes")
        return page

    def _note_fault(self, fault: str | None) -> None:
        if fault == self._fault:
            return
        self._fault = fault
        kind = "scrape_resumed" if fault is None else "scrape_failed"
        if fault is None and self._last_page is None:
            return  # the first success resumes nothing
        time_s = self._run.seconds(self._clock.now_ns())
        detail = self._name if fault is None else f"{self._name}: {fault}"
        self._events.append(row_line(RunEvent(time_s, kind, None, detail)))

    def _keep_page(self, which: Literal["first", "last"], page: bytes) -> None:
        (self._folder / page_file(which, self._index)).write_bytes(page)


def _proxy_handlers(url: str) -> Iterator[urllib.request.BaseHandler]:
    """No proxy for this machine: a proxy of the environment could not reach it."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        yield urllib.request.ProxyHandler({})


def _fault_text(error: Exception) -> str:
    """The kind of fault, without what changes from one time to the next."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)[:120]
    return str(error)[:160] or type(error).__name__


def run_endpoint(endpoint: Endpoint, job: ScrapeJob, clock: Clock, stop: threading.Event) -> None:
    """Scrape every `every_s` from the run's start on, skipping what cannot be kept up with."""
    every_ns = round(job.every_s * NS_PER_S)
    while True:
        passed_ns = (clock.now_ns() - job.run_start_ns) % every_ns
        if stop.wait((every_ns - passed_ns) / NS_PER_S):
            break
        endpoint.read_once()
    endpoint.read_once()  # after the last turn: the server observes a request when it finishes
    endpoint.close()


def main() -> int:
    # Ctrl-C reaches the whole group; the load generator closes our input when its turns are over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = ScrapeJob.from_line(sys.stdin.readline())
    clock = MonotonicClock()
    endpoints = [Endpoint(i, url, job, clock) for i, url in enumerate(job.urls)]
    threads = []
    stop = threading.Event()
    for endpoint in endpoints:
        endpoint.read_once()
        thread = threading.Thread(target=run_endpoint, args=(endpoint, job, clock, stop))
        thread.start()
        threads.append(thread)
    print(READY, flush=True)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
