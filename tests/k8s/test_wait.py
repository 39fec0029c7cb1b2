"""The init containers' wait for an address."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentload.kubernetes.wait import RefusedError, attempt, main

KEY = "canary-of-the-wait-test"


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Answers /models with 503 twice, then as the key is."""

    class Handler(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            Handler.asked += 1
            right = self.headers["authorization"] == f"Bearer {KEY}"
            self.send_response(503 if Handler.asked <= 2 else 200 if right else 401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silence."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_model_server_is_waited_for_with_the_key(
    server: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("agentload.kubernetes.wait.PAUSE_S", 0.01)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    url = f"http://127.0.0.1:{server.server_port}/models"
    assert main(["--limit-s=30", url]) == 0
    said = capfd.readouterr().err
    assert said.count("HTTP status 503") == 1  # each reason once
    assert f"{url} answers" in said
    assert KEY not in said
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    assert main(["--limit-s=30", url]) == 2
    assert "the key of OPENAI_API_KEY is not the server's" in capfd.readouterr().err
    with pytest.raises(RefusedError, match="it needs an API key"):
        attempt(url, {})


@pytest.mark.slow
def test_a_master_that_comes_late_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        waiting = subprocess.Popen(
            [sys.executable, "-m", "agentload.kubernetes.wait", f"tcp://127.0.0.1:{port}"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        assert "Connection refused" in waiting.stderr.readline()
        taken.listen()
        assert waiting.wait(60) == 0
        waiting.stderr.close()


@pytest.mark.slow
@pytest.mark.needs("root")
def test_the_limit_ends_the_wait_and_so_does_a_signal_as_first_process() -> None:
    command = [sys.executable, "-m", "agentload.kubernetes.wait"]
    ended = subprocess.run([*command, "--limit-s=0.1", "tcp://127.0.0.1:1"], check=False)
    assert ended.returncode == 1
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command, "tcp://127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stderr is not None
        first.stderr.readline()  # it waits
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text()
        subprocess.run(["kill", f"-{signal.SIGTERM}", children.strip()], check=True)
        assert first.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "address", ["tcp://master", "tcp://master:port", "master:5557", "ftp://h:1", "tcp://$(HOST):1"]
)
def test_what_is_no_address_is_refused(
    address: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main([address])
    assert ended.value.code == 2
    assert "tcp://HOST:PORT" in capfd.readouterr().err
