"""Runs a real vLLM with a tiny model on a free port.

    python -m tests.vllm.server [--sliding-window TOKENS] [--hidden-size N] [vllm serve flags...]

As a command it stays in the foreground and prints the base URL once the server answers; Ctrl-C or
TERM stops all of vLLM's processes. Tests use `running_server`. It runs in the project's own
environment, vLLM in that of `install.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentload.experiment.process import Child
from agentload.experiment.server import free_port
from tests.vllm import install

MODEL = "tiny"
START_LIMIT_S = 300  # 35 s on two idle cores, 150 s measured with four starts at once
STOP_LIMIT_S = 30
BASE_FLAGS = (
    *("--host", "127.0.0.1", "--served-model-name", MODEL, "--dtype", "float32"),
    # Without --enforce-eager the first start compiles the model, 26 s more.
    *("--enforce-eager", "--kv-cache-memory-bytes", "128M"),
)

# How vLLM's CPU build is kept from measuring this machine instead of itself; docs/real-vllm.md has
# the figures.
# Engine and worker would be two processes that wait for each other in a loop of sched_yield, which
# takes a CPU from whatever else runs there. This makes them one, which waits without a loop.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# Large arrays would go back to the system after each step, to be faulted in anew for the next.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
}
# The engine has a CPU to itself; API server, which tokenizes, and client have the others.
_CPUS = sorted(os.sched_getaffinity(0))
ENGINE_CPUS = frozenset(_CPUS[:1])
CLIENT_CPUS = frozenset(_CPUS[1:] or _CPUS)

# Nothing for this machine goes through a proxy of the environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """The server did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class RealServer:
    """A vLLM that answers. `url` has no /v1; `log` is the file its output goes to."""

    url: str
    log: Path

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def get(self, path: str) -> str:
        """Body of a GET; raises urllib.error.HTTPError for a status of 400 or more."""
        with _DIRECT.open(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())


def on_cpus(cpus: frozenset[int]) -> list[str]:
    """The words before a command that keep it on these CPUs."""
    return ["taskset", "--cpu-list", ",".join(map(str, sorted(cpus)))]


def model_directory(sliding_window: int | None = None, hidden_size: int | None = None) -> Path:
    """The tiny model, made on first use, inside the vLLM environment."""
    env = install.venv_path()
    name, options = "tiny-model", []
    if sliding_window:
        name += f"-sw{sliding_window}"
        options += ["--sliding-window", str(sliding_window)]
    if hidden_size:
        name += f"-h{hidden_size}"
        options += ["--hidden-size", str(hidden_size)]
    directory = env / name
    script = Path(__file__).with_name("make_tiny_model.py")
    command = [str(install.python_of(env)), str(script), str(directory), *options]
    subprocess.run(command, check=True, env=os.environ | install.OFFLINE)
    return directory


@contextlib.contextmanager
def running_server(
    log: Path,
    flags: Sequence[str] = (),
    sliding_window: int | None = None,
    *,
    hidden_size: int | None = None,
    start_limit_s: float = START_LIMIT_S,
) -> Iterator[RealServer]:
    """Start a server with these `vllm serve` flags; its process group ends with the block.

    Raises ServerError when it exits or has not answered `/health` after `start_limit_s`.
    """
    model = model_directory(sliding_window, hidden_size)
    port = free_port()
    vllm = [str(install.venv_path() / "bin" / "vllm"), "serve", str(model)]
    # When this process is killed the API server is told to end, not killed: it ends its engine.
    orphan = ["setpriv", "--pdeathsig", "TERM"]
    command = [*on_cpus(ENGINE_CPUS), *orphan, *vllm, "--port", str(port), *BASE_FLAGS, *flags]
    child = Child(command, log, install.OFFLINE | ONE_PROCESS | KEEP_MEMORY)
    try:
        server = RealServer(f"http://127.0.0.1:{port}", log)
        _wait_until_healthy(server, child, start_limit_s)
        _move(child.pid, CLIENT_CPUS)  # the API server; what it started stays
        yield server
    finally:
        child.end(STOP_LIMIT_S)


def _move(pid: int, cpus: frozenset[int]) -> None:
    """Keep all threads of a process on these CPUs; those to come inherit it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended since
            os.sched_setaffinity(int(task.name), cpus)


def _wait_until_healthy(server: RealServer, child: Child, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        status = child.wait(0.5)  # the pace of the loop; returns at once when the server exits
        if status is not None:
            raise ServerError(f"vLLM exited with status {status}\n{child.last_lines(30)}")
        with contextlib.suppress(OSError):  # not listening yet; URLError is one
            server.get("/health")
            return
    raise ServerError(f"vLLM did not answer within {limit_s:g} s\n{child.last_lines(30)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sliding-window", type=int, metavar="TOKENS")
    parser.add_argument("--hidden-size", type=int, metavar="N")
    arguments, flags = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log = install.venv_path() / "server.log"
    print(f"log: {log}", flush=True)
    try:
        with running_server(
            log, flags, arguments.sliding_window, hidden_size=arguments.hidden_size
        ) as server:
            print(f"{server.openai_url} serves the model {MODEL!r}", flush=True)
            signal.pause()
    except ServerError as error:
        print(f"server.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
