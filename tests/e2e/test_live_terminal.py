"""What a headless run shows: a block on a terminal, and where its port cannot be had."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.e2e.locust_process import LOCUSTFILE, SCENARIO, Bench
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

STAGES = "stages=[{name: high, duration_s: 4, users: 4}]"
COLUMNS = 80
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOG_LINE = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+\] \S+/[A-Z]+/[\w.]+: ")


def run_on_terminal(*args: str) -> str:
    """All bytes that a process wrote to a terminal of 80 columns that is its stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LOCUST_"))}
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("locust")), "-f", str(LOCUSTFILE), *args],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        env={**env, "TERM": "xterm-256color"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()
    try:
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not part:
                break
            seen += part
        assert process.wait(60) in (0, 1, 3), seen.decode()
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)
    return seen.decode()


@pytest.fixture(scope="module")
def written(target: Sim, tmp_path_factory: pytest.TempPathFactory) -> str:
    runs = tmp_path_factory.mktemp("terminal") / "runs"
    given = ("--scenario", str(SCENARIO), "--run-dir", str(runs), "--stop-timeout", "10")
    host = ("--host", f"http://127.0.0.1:{target.port}", "--arm", "base")
    return run_on_terminal(*given, *host, "--headless", "--set", STAGES)


def test_the_block_is_drawn_again_and_again_within_the_width(written: str) -> None:
    lines = [line for line in ANSI.sub("", written).replace("\r", "\n").split("\n") if line]
    heads = [line for line in lines if line.lstrip().startswith("turns ")]
    assert len(heads) >= 4
    block = [line for line in lines if re.match(r"(base:|turns |tool |cold |all |server:)", line)]
    assert max(map(len, block)) < COLUMNS
    assert any("running" in line and "waiting" in line for line in block)
    states = [line.split()[1] for line in block if line.startswith("base: ")]
    assert states[-1] == "complete"


def test_lines_of_the_log_stay_whole(written: str) -> None:
    lines = re.split(r"[\r\n]+", ANSI.sub("", written))
    logged = [line for line in lines if "/INFO/" in line or "/WARNING/" in line]
    assert len(logged) > 5
    for line in logged:
        assert LOG_LINE.match(line), line  # at the start of its line, not behind the block
    (ended,) = [line for line in logged if "owner_side: agentload: /" in line]
    assert ended.split(" is ")[1].startswith(("complete", "interrupted"))
    assert len(ended) > COLUMNS  # in one piece: the terminal wraps it, nobody else


def test_the_terminal_is_left_as_it_was(written: str) -> None:
    hidden, shown = written.rfind("\x1b[?25l"), written.rfind("\x1b[?25h")
    assert 0 < hidden < shown
    after = written[written.rfind("server: ") :]
    assert "Response time percentiles" in after  # Locust's own table, below the last block


def test_a_port_that_is_taken_ends_the_start(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        locust = bench.owner("--headless", "--metrics-port", port)
        assert locust.wait() == 2
    assert f"agentload: --metrics-port {port}: Address already in use" in locust.output
    assert bench.folders() == []


def test_what_is_no_port_is_told_by_its_option(bench: Bench) -> None:
    locust = bench.owner("--headless", "--metrics-port", "65536")
    assert locust.wait() == 2
    assert "--metrics-port: 65536 is no port: 1 to 65535" in locust.output
