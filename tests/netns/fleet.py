"""A master, its workers and a simulated server, each on a host of its own."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.locust_process import RunFolder, RunFolders
from tests.netns.network import Host, Network, Process, network_in, until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOCUST = Path(sys.executable).with_name("locust")
LOCUSTFILE = ROOT / "locustfiles" / "coding_agents.py"
SCENARIO = HERE / "load.yaml"
SERVER = "http://server:8000/v1"
PORT = 5557


class Fleet(RunFolders):
    """Every host has its own temporary folder, so a worker's spool is on no other machine.

    `is_running` is called when the first turns are recorded: until then it needs much CPU time.
    """

    def __init__(
        self, network: Network, workers: int, is_running: Callable[[], object] = lambda: None
    ) -> None:
        self.network = network
        self._is_running = is_running
        self.runs = network.folder / "runs"
        self.workers: list[Process] = []
        self.worker_hosts = [network.host(f"worker{k}") for k in range(workers)]
        self.master_host = network.host("master")
        self.request_log = network.folder / "requests.jsonl"
        self.server = self._serve(network.host("server"))

    def _serve(self, host: Host) -> Process:
        module = [sys.executable, "-m", "agentload.sim.server", "--host", "0.0.0.0"]
        model = ["--port", "8000", "--served-model-name", "tiny", "--max-model-len", "32768"]
        log = ["--request-log", str(self.request_log)]
        server = host.start([*module, *model, *log])
        until(lambda: '"ready"' in server.output or server.code is not None, "the server is up")
        return server

    # -- Locust -----------------------------------------------------------------------------

    def master(self, *args: str, expect: int | None = None) -> Process:
        """A master that waits for as many workers as there are hosts, or for `expect`."""
        count = len(self.worker_hosts) if expect is None else expect
        wait = ["--expect-workers", str(count), "--expect-workers-max-wait", "90"]
        return self.owner("--master", *wait, *args)

    def owner(self, *args: str) -> Process:
        given = ["--scenario", str(SCENARIO), "--host", SERVER, "--run-dir", str(self.runs)]
        return self.locust(self.master_host, *given, "--only-summary", *args)

    def worker(self, number: int, *before: str) -> Process:
        worker = self.locust(
            self.worker_hosts[number], "--worker", "--master-host", "master", before=before
        )
        self.workers.append(worker)
        return worker

    def all_workers(self) -> list[Process]:
        return [self.worker(number) for number in range(len(self.worker_hosts))]

    def locust(self, host: Host, *args: str, before: tuple[str, ...] = ()) -> Process:
        temporary = self.spool_of(host).parent
        temporary.mkdir(exist_ok=True)
        command = [str(LOCUST), "-f", str(LOCUSTFILE), *args]
        return host.start(command, {"TMPDIR": str(temporary)}, before)

    def spool_of(self, host: Host) -> Path:
        return self.network.folder / f"tmp-{host.name}" / "agentload-spool-0"

    # -- what came of it --------------------------------------------------------------------

    def running(self, rows: int = 6) -> RunFolder:
        """The newest run folder as soon as it has this many turns."""
        run: RunFolder = until(lambda: self.folder_with(rows), f"{rows} turns recorded")
        self._is_running()
        return run

    def finished(self) -> set[str]:
        """Ids of the requests whose stream the server completed."""
        lines = self.request_log.read_text(encoding="utf-8").splitlines()
        return {
            one["request_id"].removeprefix("chatcmpl-")
            for one in map(json.loads, lines)
            if one["outcome"] == "finished" and one["stream"]
        }

    def spooled(self) -> set[str]:
        """Ids of the turns whose rows are still on a worker's disk."""
        return {
            row["request_id"]
            for host in self.worker_hosts
            for file in self.spool_of(host).rglob("turns.csv")
            for row in RunFolder(file.parent).rows()
        }

    # -- the web page -----------------------------------------------------------------------

    def page(self, path: str) -> str:
        """What the master's web page shows, as seen on its own host."""
        return page(self.master_host, path)

    def page_is_up(self) -> bool:
        with contextlib.suppress(AssertionError):
            return bool(self.page("/"))
        return False


def page(host: Host, path: str, form: dict[str, str] | None = None) -> str:
    """What Locust's web page on this host answers; a form is posted."""
    code = (
        "import sys, urllib.request as u;"
        "d = sys.argv[2].encode() if len(sys.argv) > 2 else None;"
        "print(u.build_opener(u.ProxyHandler({})).open(sys.argv[1], d).read().decode())"
    )
    data = [] if form is None else [urllib.parse.urlencode(form)]
    return host.run(sys.executable, "-c", code, f"http://127.0.0.1:8089{path}", *data)


@contextlib.contextmanager
def fleet_in(folder: Path, workers: int, is_running: Callable[[], object]) -> Iterator[Fleet]:
    with network_in(folder) as network:
        yield Fleet(network, workers, is_running)
