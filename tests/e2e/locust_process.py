"""The real Locust as processes of their own, and what they left behind."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "locustfiles" / "coding_agents.py"
SCENARIO = Path(__file__).with_name("small.yaml")
DEADLINE_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RunFolder:
    path: Path

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "manifest.json").read_text(encoding="utf-8")))

    def rows(self, name: str = "turns.csv") -> list[dict[str, str]]:
        with (self.path / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def events(self) -> dict[str, str]:
        """Kind of event -> detail of the last one."""
        return {row["kind"]: row["detail"] for row in self.rows("events.csv")}

    @property
    def reasons(self) -> str:
        return "\n".join(self.manifest["verdict"]["reasons"])


class Locust:
    """One `locust` process, in a session of its own, its output kept."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LOCUST_"))}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("locust")), "-f", str(LOCUSTFILE), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**kept, **(env or {})},
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def wait(self) -> int:
        """The exit code; the process is killed when it takes too long."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill_group()
            raise AssertionError(f"locust did not end:\n{self.output}") from None
        self._reader.join(10)
        return code

    def kill_group(self) -> None:
        """Nothing that this process started outlives the test."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self._reader.join(10)


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value. Waits for a state of another process, never for a result
    that the passing of time alone would bring."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


class RunFolders:
    """What came of the runs below one `--run-dir`."""

    runs: Path

    def folders(self) -> list[RunFolder]:
        found = sorted(self.runs.iterdir()) if self.runs.is_dir() else []
        return [RunFolder(path) for path in found]

    def folder(self) -> RunFolder:
        (only,) = self.folders()
        return only

    def folder_with(self, rows: int) -> RunFolder | None:
        """The newest run folder, once it has more than so many lines of turns."""
        found = self.folders()
        if not found or not (found[-1].path / "turns.csv").exists():
            return None
        lines = (found[-1].path / "turns.csv").read_bytes().count(b"\n")
        return found[-1] if lines > rows else None


class Bench(RunFolders):
    """Starts Locust processes against one target, with one folder for their runs."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self.runs = folder / "runs"
        self.spool = folder / "spool"
        self._base_url = base_url
        self._started: list[Locust] = []

    def start(self, *args: str, env: dict[str, str] | None = None) -> Locust:
        spool = ("--spool-dir", str(self.spool))
        locust = Locust(*spool, *args, env=env)
        self._started.append(locust)
        return locust

    def owner(self, *args: str, env: dict[str, str] | None = None) -> Locust:
        """A process that owns the run: single, master, or with `--processes`."""
        given = ("--scenario", str(SCENARIO), "--run-dir", str(self.runs), "--only-summary")
        host = () if "--host" in args else ("--host", self._base_url)
        return self.start(*given, *host, *args, env=env)

    def distributed(self, workers: int, *args: str) -> tuple[Locust, list[Locust]]:
        port = str(free_port())
        expected = ("--expect-workers", str(workers), "--expect-workers-max-wait", "60")
        master = self.owner("--master", "--master-bind-port", port, *expected, *args)
        return master, [
            self.start("--worker", "--master-host", "127.0.0.1", "--master-port", port)
            for _ in range(workers)
        ]

    def running_folder(self, rows: int = 1) -> RunFolder:
        """The run folder as soon as it has this many turns."""
        found: RunFolder = until(lambda: self.folder_with(rows), f"{rows} turns recorded")
        return found

    def kept_shards(self, turns: int) -> list[Path]:
        """Shards that stay with the workers, as soon as there are so many turns in each."""

        def have_turns() -> list[Path] | None:
            files = sorted(self.runs.glob("*/shards/*/turns.csv"))
            counts = [path.read_bytes().count(b"\n") for path in files]
            return [p.parent for p in files] if counts and min(counts) > turns else None

        return until(have_turns, f"{turns} turns recorded")  # type: ignore[no-any-return]

    def close(self) -> None:
        for locust in self._started:
            locust.kill_group()


class WebPage:
    """Locust's own web page, used as a browser's scripts use it."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str:
        answer = self._opener.open(self._root + path, timeout=DEADLINE_S)
        return str(answer.read().decode())

    def post(self, path: str, **form: str) -> dict[str, Any]:
        data = urllib.parse.urlencode(form).encode()
        answer = self._opener.open(self._root + path, data, timeout=DEADLINE_S)
        return dict(json.loads(answer.read()))

    def wait_up(self) -> str:
        def page() -> str | None:
            try:
                return self.get("/")
            except OSError:
                return None

        return until(page, "the web page is up")  # type: ignore[no-any-return]
