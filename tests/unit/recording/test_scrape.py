"""The scraper against a server that answers as it is told to."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentload.clock import VirtualClock
from agentload.recording.dns_pages import addresses, is_dns, pages_of
from agentload.recording.scrape import (
    READY,
    Endpoint,
    Pages,
    ScrapeJob,
    metrics_urls,
    without_secrets,
)

PAGE = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} %d\n'


@dataclass
class Server:
    """Gives out (status, body) in order, the last one for ever."""

    answers: list[tuple[int, bytes]] = field(default_factory=lambda: [(200, PAGE % 1)])
    port: int = 0
    keys: list[str | None] = field(default_factory=list)  # of the requests that came

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.keys.append(self.headers["authorization"])
            status, body = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silence."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield told
    http.shutdown()
    thread.join()
    http.server_close()


def endpoint(folder: Path, url: str) -> Endpoint:
    clock = VirtualClock(5_000_000_000)
    return Endpoint(0, url, ScrapeJob(str(folder), (url,), 2_000_000_000), clock)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_samples_and_the_first_and_last_page_are_kept(tmp_path: Path, server: Server) -> None:
    server.answers = [(200, PAGE % 1), (200, PAGE % 2), (200, PAGE % 3)]
    page = endpoint(tmp_path, server.url)
    for _ in range(3):
        page.read_once()
    page.close()
    found = rows(tmp_path, "scrape.csv")
    assert [float(row["value"]) for row in found] == [1, 2, 3]
    assert {row["time_s"] for row in found} == {"3.000000"}
    assert {row["endpoint"] for row in found} == {server.url}
    assert (tmp_path / "metrics_first_0.txt").read_bytes() == PAGE % 1
    assert (tmp_path / "metrics_last_0.txt").read_bytes() == PAGE % 3
    assert rows(tmp_path, "events.csv") == []


def test_a_fault_is_one_event_when_it_begins_and_one_when_it_ends(
    tmp_path: Path, server: Server
) -> None:
    broken = (200, b"vllm:num_requests_running{ 1\n")
    server.answers = [(404, b""), (404, b""), (200, PAGE % 1), broken, broken, (200, PAGE % 2)]
    page = endpoint(tmp_path, server.url)
    for _ in range(6):
        page.read_once()
    page.close()
    events = rows(tmp_path, "events.csv")
    assert [row["kind"] for row in events] == ["scrape_failed", "scrape_failed", "scrape_resumed"]
    assert "HTTP status 404" in events[0]["detail"]
    assert "not a Prometheus page" in events[1]["detail"]
    assert [float(row["value"]) for row in rows(tmp_path, "scrape.csv")] == [1, 2]


def test_a_page_without_end_is_refused(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentload.recording.scrape.MAX_PAGE_BYTES", 50)
    page = endpoint(tmp_path, server.url)
    page.read_once()
    page.close()
    assert "more than 50 bytes" in rows(tmp_path, "events.csv")[0]["detail"]
    assert rows(tmp_path, "scrape.csv") == []


def test_the_proxy_of_the_environment_does_not_stand_before_this_machine(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    page = endpoint(tmp_path, server.url)
    page.read_once()
    page.close()
    assert len(rows(tmp_path, "scrape.csv")) == 1


@pytest.mark.parametrize(
    ("base_url", "page"),
    [
        ("http://h:8000/v1", "http://h:8000/metrics"),
        ("https://gw/team/v1", "https://gw/team/metrics"),
    ],
)
def test_the_page_is_at_the_root_of_the_address(base_url: str, page: str) -> None:
    assert metrics_urls(base_url) == (page,)
    assert metrics_urls(base_url, ("http://a/m", "http://b/m")) == ("http://a/m", "http://b/m")


def test_user_password_and_query_of_an_address_are_not_recorded() -> None:
    assert without_secrets("https://user:pass@h:1/metrics?key=s#f") == "https://h:1/metrics"


@pytest.mark.slow
def test_the_process_outlives_ctrl_c_and_ends_when_its_input_closes(
    tmp_path: Path, server: Server
) -> None:
    job = ScrapeJob(str(tmp_path), (server.url,), 0, every_s=0.05)
    process = subprocess.Popen(
        [sys.executable, "-m", "agentload.recording.scrape"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(job.as_line())
    process.stdin.flush()
    assert process.stdout.readline().strip() == READY
    process.send_signal(signal.SIGINT)
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()
    assert len(rows(tmp_path, "scrape.csv")) >= 2  # the first scrape and the last
    assert (tmp_path / "metrics_last_0.txt").exists()


def test_a_job_is_one_line() -> None:
    job = ScrapeJob("/runs/r 1", ("http://a/m",), 7, 0.5)
    assert job.as_line().count("\n") == 1
    assert ScrapeJob.from_line(job.as_line()) == job
    assert json.loads(job.as_line())["every_s"] == 0.5


def test_a_name_stands_for_the_page_of_each_of_its_addresses() -> None:
    asked = []

    def resolve(host: str, port: int) -> tuple[str, ...]:
        asked.append((host, port))
        return ("10.0.0.7", "10.0.0.9", "[fd00::3]")

    assert pages_of("dns://pods.ns.svc:8000/metrics", resolve) == (
        "http://10.0.0.7:8000/metrics",
        "http://10.0.0.9:8000/metrics",
        "http://[fd00::3]:8000/metrics",
    )
    assert asked == [("pods.ns.svc", 8000)]
    assert is_dns("dns://h/m")
    assert not is_dns("http://h/m")
    assert addresses("127.0.0.1", 80) == ("127.0.0.1",)


def test_replicas_that_come_and_go_are_read_and_told(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentload.recording.scrape.TIMEOUT_S", 0.5)
    name = f"dns://pods:{server.port}/metrics"
    answers: list[tuple[str, ...] | OSError] = [
        ("127.0.0.1",),
        OSError(-2, "Name or service not known"),
        OSError(-2, "Name or service not known"),
        ("127.0.0.1", "localhost"),
        ("localhost",),
    ]

    def resolve(_host: str, _port: int) -> tuple[str, ...]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    clock = VirtualClock(5_000_000_000)
    pages = Pages(ScrapeJob(str(tmp_path), (name,), 2_000_000_000, 3600.0), clock, resolve)
    while answers:
        pages.update()
    pages.close()
    first, second = server.url, server.url.replace("127.0.0.1", "localhost")
    told = [(row["kind"], row["detail"]) for row in rows(tmp_path, "events.csv")]
    assert told == [
        ("replica_found", first),
        ("scrape_failed", f"{name}: Name or service not known"),
        ("replica_found", second),
        ("replica_gone", first),
    ]
    assert {row["endpoint"] for row in rows(tmp_path, "scrape.csv")} == {first, second}
    assert (tmp_path / "metrics_first_1.txt").exists()


def test_the_password_of_a_page_is_sent_and_shown_nowhere(tmp_path: Path, server: Server) -> None:
    server.answers = [(401, b"no"), (200, PAGE % 1)]
    page = endpoint(tmp_path, server.url.replace("//", "//gpu:s3cr%2Ft@"))
    page.read_once()
    page.read_once()
    page.close()
    assert server.keys == ["Basic Z3B1OnMzY3IvdA=="] * 2  # gpu:s3cr/t
    assert len(rows(tmp_path, "events.csv")) == 1
    assert all("s3cr" not in p.read_text() for p in tmp_path.iterdir())
    broken = endpoint(tmp_path, "http://gpu:s3cr@t:x/metrics")  # a port that is none
    broken.read_once()
    broken.close()
    assert len(rows(tmp_path, "events.csv")) == 2
    assert all("s3cr" not in p.read_text() for p in tmp_path.iterdir())
