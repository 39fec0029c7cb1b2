"""The process that reads the servers' `/metrics` pages beside a run.

    python -m agentload.recording.scrape < job

It is a process of its own, since parsing a page of 60 KB takes 8 ms and more in which no stream of
the load generator could be read. The job is one line of JSON on standard input; the run ends when
standard input closes, also when the process that started it was killed. `scrape.csv` is its own;
to `events.csv` it appends.
"""

from __future__ import annotations

import base64
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
from agentload.recording.dns_pages import Resolve, addresses, is_dns, pages_of
from agentload.recording.metrics_page import MAX_PAGE_BYTES, PageError, samples
from agentload.recording.record import EVENTS_CSV, SCRAPE_CSV, RunEvent, ScrapeSample

TIMEOUT_S = 5.0
RESOLVE_EVERY_S = 5.0
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
        self._request = _request(url)
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
        with self._opener.open(self._request, timeout=TIMEOUT_S) as answer:
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


def _request(url: str) -> urllib.request.Request:
    """User name and password of the address become a header, which no message shows."""
    parts = urllib.parse.urlsplit(url)
    who, at, host = parts.netloc.rpartition("@")
    plain = urllib.parse.urlunsplit(parts._replace(netloc=host))
    request = urllib.request.Request(plain)
    if at:
        told = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
        request.add_unredirected_header("authorization", f"Basic {told}")
    return request


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


class Pages:
    """The pages of a job, each read by a thread of its own; those behind `dns://` come and go."""

    def __init__(self, job: ScrapeJob, clock: Clock, resolve: Resolve = addresses) -> None:
        self._job = job
        self._clock = clock
        self._resolve = resolve
        self._run = RunClock(job.run_start_ns, 0.0)
        self._events = AppendOnlyFile(Path(job.folder) / EVENTS_CSV, header_line(RunEvent))
        self._begun = 0  # a page that comes again gets a number of its own
        self._reading: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._faults: dict[str, str] = {}
        self._lock = threading.Lock()  # a name is resolved for seconds while the run may end
        self._closed = False

    def update(self) -> None:
        """Begin to read what is new, leave what is gone; a first reading is over on return."""
        wanted = dict.fromkeys(page for url in self._job.urls for page in self._behind(url))
        with self._lock:
            if self._closed:
                return
            for page in [page for page in self._reading if page not in wanted]:
                self._note("replica_gone", page)
                self._reading.pop(page)[1].set()
            new = [page for page in wanted if page not in self._reading]
            first_readings = [self._begin(page) for page in new]
        for done in first_readings:
            done.wait()

    def keep_up(self, stop: threading.Event) -> None:
        """Look again for what is behind the names, until told to stop."""
        while not stop.wait(RESOLVE_EVERY_S):
            self.update()

    def close(self) -> None:
        """Read every page once more."""
        with self._lock:
            self._closed = True
        for _, stop in self._reading.values():
            stop.set()
        for thread, _ in self._reading.values():
            thread.join()

    def _behind(self, url: str) -> tuple[str, ...]:
        """What an address stands for; what it stood for last when its name cannot be resolved."""
        if not is_dns(url):
            return (url,)
        try:
            pages = pages_of(url, self._resolve)
        except OSError as error:
            self._note_fault(url, error.strerror or str(error))
            return tuple(self._reading)
        self._note_fault(url, None)
        return pages

    def _begin(self, page: str) -> threading.Event:
        if page not in self._job.urls:
            self._note("replica_found", page)
        endpoint = Endpoint(self._begun, page, self._job, self._clock)
        self._begun += 1
        first_reading, stop = threading.Event(), threading.Event()

        def run() -> None:
            endpoint.read_once()
            first_reading.set()
            run_endpoint(endpoint, self._job, self._clock, stop)

        thread = threading.Thread(target=run)
        thread.start()
        self._reading[page] = thread, stop
        return first_reading

    def _note_fault(self, url: str, fault: str | None) -> None:
        if fault == self._faults.get(url):
            return
        if fault is None:
            del self._faults[url]
            return
        self._faults[url] = fault
        self._note("scrape_failed", f"{without_secrets(url)}: {fault}")

    def _note(self, kind: str, detail: str) -> None:
        time_s = self._run.seconds(self._clock.now_ns())
        self._events.append(row_line(RunEvent(time_s, kind, None, detail)))


def main() -> int:
    # Ctrl-C reaches the whole group; the load generator closes our input when its turns are over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = ScrapeJob.from_line(sys.stdin.readline())
    pages = Pages(job, MonotonicClock())
    pages.update()
    print(READY, flush=True)
    stop = threading.Event()
    if any(map(is_dns, job.urls)):
        threading.Thread(target=pages.keep_up, args=(stop,), daemon=True).start()
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()
    pages.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
